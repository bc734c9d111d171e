#include "entry.hpp"

#include "arena.hpp"
#include "host_functions.hpp"
#include "reports.hpp"
#include "settings.hpp"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace driver_double {

thread_local bool null_is_per_thread = false;

namespace {

struct variant {
  int version;
  entry_pointer function;
  entry_pointer per_thread;
};

std::map<std::string, std::vector<variant>>& table() {
  static auto& made = *new std::map<std::string, std::vector<variant>>;
  return made;
}

std::atomic<bool> ready{false};
std::atomic<bool> forked{false};

}  // namespace

void add_entry(const char* name, int version, entry_pointer function, entry_pointer per_thread) {
  table()[name].push_back({version, function, per_thread});
}

CUresult enter() {
  if (in_host_function) [[unlikely]] {
    return report(CUDA_ERROR_NOT_PERMITTED,
                  "[driver double] a host function in a stream may not call the driver");
  }
  if (ready.load(std::memory_order_acquire)) [[likely]]
    return CUDA_SUCCESS;
  if (forked) {
    return report(CUDA_ERROR_NOT_INITIALIZED,
                  "[driver double] the driver was initialised before this process was forked: a "
                  "child cannot use it; start processes with spawn, or fork before the first use");
  }
  return CUDA_ERROR_NOT_INITIALIZED;
}

bool initialised() { return ready; }

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuInit(unsigned flags) {
  if (forked) return enter();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const settings& values = settings::get();
  if (!values.error.empty()) return report(CUDA_ERROR_INVALID_VALUE, "%s", values.error.c_str());
  if (values.devices == 0) return CUDA_ERROR_NO_DEVICE;
  static const bool prepared = [] {
    if (!arena::get().open()) return false;
    pthread_atfork(nullptr, nullptr, [] {
      if (ready.exchange(false)) forked = true;
    });
    return true;
  }();
  if (!prepared) return CUDA_ERROR_OPERATING_SYSTEM;
  ready.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = settings::get().driver_version;
  return CUDA_SUCCESS;
}

// Gives the newest variant that neither the caller's version nor the driver's excludes.
DRIVER_API CUresult cuGetProcAddress_v2(const char* symbol, void** pointer, int version,
                                        uint64_t flags, int* status) {
  if (symbol == nullptr || pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pointer = nullptr;
  auto found = table().find(symbol);
  if (found == table().end()) {
    if (status != nullptr) *status = 1;
    return status != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  }
  const variant* best = nullptr;
  for (const variant& each : found->second) {
    if (each.version > version || each.version > settings::get().driver_version) continue;
    if (best == nullptr || each.version > best->version) best = &each;
  }
  if (best == nullptr) {
    if (status != nullptr) *status = 2;
    return status != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  }
  bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *pointer = reinterpret_cast<void*>(per_thread ? best->per_thread : best->function);
  if (status != nullptr) *status = 0;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGetProcAddress(const char* symbol, void** pointer, int version,
                                     uint64_t flags) {
  return cuGetProcAddress_v2(symbol, pointer, version, flags, nullptr);
}

// NVIDIA's libraries ask for undocumented tables and call this without looking whether it is there.
DRIVER_API CUresult cuGetExportTable(const void** table, const void* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

namespace {
const entry_table entries{
    entry<&cuInit>("cuInit", 2000),
    entry<&cuGetExportTable>("cuGetExportTable", 3000),
    entry<&cuDriverGetVersion>("cuDriverGetVersion", 2020),
    entry<&cuGetProcAddress>("cuGetProcAddress", 11030),
    entry<&cuGetProcAddress_v2>("cuGetProcAddress", 12000),
};
}
