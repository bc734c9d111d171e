#include "target.hpp"

#include <pthread.h>

#include <cstdlib>
#include <mutex>

#include <ruda/entry.hpp>

namespace ruda::native::cuda {

namespace detail {
std::atomic<state> current{state::off};
}

namespace {

struct target_state {
  std::mutex mutex;
  driver table;
  bool opened = false;
  CUdevice number = 0;
  CUcontext context = nullptr;
  device_info info;
};

target_state& the_target() {
  static target_state* shared = new target_state;
  return *shared;
}

thread_local CUcontext entered = nullptr;

std::string failed(const driver& table, const char* call, CUresult code) {
  return call_text(table, call, code) + "; " + advice(code);
}

std::string visible_text() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "CUDA_VISIBLE_DEVICES is not set"
                            : "CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "'";
}

std::string read_device(target_state& self) {
  const driver& table = self.table;
  device_info& info = self.info;
  char name[256] = "";
  if (const CUresult code = table.cuDeviceGetName(name, sizeof(name), self.number); code != success)
    return failed(table, "cuDeviceGetName", code);
  info.name = name;
  int cooperative = 0, pools = 0, optin = 0;
  const struct {
    int attribute;
    int* value;
  } wanted[] = {
      {attribute_capability_major, &info.major},
      {attribute_capability_minor, &info.minor},
      {attribute_multiprocessor_count, &info.multiprocessors},
      {attribute_max_threads_per_block, &info.max_threads_per_block},
      {attribute_max_shared_memory_per_block, &info.shared_memory_per_block},
      {attribute_max_shared_memory_per_block_optin, &optin},
      {attribute_warp_size, &info.warp_size},
      {attribute_cooperative_launch, &cooperative},
      {attribute_memory_pools_supported, &pools},
  };
  for (const auto& [attribute, value] : wanted)
    if (const CUresult code = table.cuDeviceGetAttribute(value, attribute, self.number);
        code != success)
      return failed(table, "cuDeviceGetAttribute", code);
  if (optin > info.shared_memory_per_block) info.shared_memory_per_block = optin;
  info.cooperative_launch = cooperative != 0;
  info.is_double = table.describe != nullptr;
  if (const CUresult code = table.cuDeviceTotalMem(&info.memory_total, self.number); code != success)
    return failed(table, "cuDeviceTotalMem", code);
  if (info.major * 10 + info.minor < 75)
    return "the GPU " + info.name + " has compute capability " + std::to_string(info.major) + "." +
           std::to_string(info.minor) + ", wanted at least 7.5; set RUDA_TARGET=host";
  if (pools == 0)
    return "the GPU " + info.name + " has no stream-ordered memory pools with this driver; install "
           "a newer NVIDIA driver";
  return "";
}

std::string open_once(target_state& self) {
  if (self.opened) return "";
  std::string missing = open_driver(self.table);
  self.opened = missing.empty();
  return missing;
}

std::string make_context(target_state& self) {
  if (std::string missing = open_once(self); !missing.empty()) return missing;
  const driver& table = self.table;
  if (const CUresult code = table.cuInit(0); code != success)
    return code == error_no_device
               ? "no NVIDIA GPU is visible (" + visible_text() + "); look at `nvidia-smi`"
               : failed(table, "cuInit", code);
  int count = 0;
  if (const CUresult code = table.cuDeviceGetCount(&count); code != success)
    return failed(table, "cuDeviceGetCount", code);
  if (count < 1) return "no NVIDIA GPU is visible (" + visible_text() + "); look at `nvidia-smi`";
  if (const CUresult code = table.cuDeviceGet(&self.number, 0); code != success)
    return failed(table, "cuDeviceGet", code);
  if (std::string missing = read_device(self); !missing.empty()) return missing;
  if (const CUresult code = table.cuDevicePrimaryCtxRetain(&self.context, self.number);
      code != success)
    return failed(table, "cuDevicePrimaryCtxRetain", code);
  return "";
}

void after_fork_in_child() {
  new (&the_target().mutex) std::mutex;
  if (usable()) detail::current.store(state::forked, std::memory_order_release);
}

}  // namespace

std::string probe(bool* is_double) {
  target_state& self = the_target();
  const std::lock_guard lock(self.mutex);
  std::string missing = open_once(self);
  *is_double = self.table.describe != nullptr;
  return missing;
}

std::string start() {
  target_state& self = the_target();
  const std::lock_guard lock(self.mutex);
  if (chosen()) return "";
  if (std::string missing = make_context(self); !missing.empty()) return missing;
  pthread_atfork([] { the_target().mutex.lock(); }, [] { the_target().mutex.unlock(); },
                 after_fork_in_child);
  detail::current.store(state::active, std::memory_order_release);
  return "";
}

int32_t enter(const char* operation, ruda_error* error) noexcept {
  const state now = detail::current.load(std::memory_order_acquire);
  RUDA_CHECK(now != state::forked, error, RUDA_ERROR_RUNTIME,
             "[%s] this process was forked after its parent had started the cuda target, which a "
             "forked child cannot use: start workers with the 'spawn' or 'forkserver' method, or fork "
             "before the first use of the GPU",
             operation);
  RUDA_CHECK(now == state::active, error, RUDA_ERROR_RUNTIME,
             "[%s] the cuda target is not in use: the process is ending, or RUDA_TARGET chose another",
             operation);
  const target_state& self = the_target();
  if (entered != self.context) [[unlikely]] {
    RUDA_CUDA(operation, error, cuCtxSetCurrent, self.context);
    entered = self.context;
  }
  return RUDA_OK;
}

const driver& api() noexcept { return the_target().table; }
const device_info& device() noexcept { return the_target().info; }

void end() noexcept {
  if (usable()) detail::current.store(state::ended, std::memory_order_release);
}

}  // namespace ruda::native::cuda
