#include "contexts.hpp"

#include "entry.hpp"
#include "reports.hpp"
#include "settings.hpp"
#include "streams.hpp"

#include <array>

namespace driver_double {
namespace {

std::mutex contexts_mutex;
std::vector<context*>& made_contexts() {
  static auto& made = *new std::vector<context*>;
  return made;
}

}  // namespace

context* make_context(int device, bool primary) {
  auto* made = new context(device, primary);
  made->limits[0] = 1024;
  made->limits[1] = 1 << 20;
  made->limits[2] = 8 << 20;
  made->legacy = new stream(*made, 0, stream::role::legacy);
  made->streams.push_back(made->legacy);
  std::lock_guard lock(contexts_mutex);
  made_contexts().push_back(made);
  made->id = made_contexts().size();
  return made;
}

bool is_device(CUdevice device) { return device >= 0 && device < settings::get().devices; }

namespace {

context* primary_of(int device) {
  static std::mutex mutex;
  static std::array<context*, 8> made{};
  std::lock_guard lock(mutex);
  context*& found = made[static_cast<size_t>(device)];
  if (found == nullptr) found = make_context(device, true);
  return found;
}

}  // namespace

std::vector<context*> all_contexts() {
  std::lock_guard lock(contexts_mutex);
  return made_contexts();
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context* primary = primary_of(device);
  std::lock_guard lock(primary->mutex);
  ++primary->references;
  *out = primary;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context* primary = primary_of(device);
  std::unique_lock lock(primary->mutex);
  if (primary->references == 0) {
    lock.unlock();
    return report(CUDA_ERROR_INVALID_CONTEXT,
                  "[cuDevicePrimaryCtxRelease] the context of device %d was released more often "
                  "than retained",
                  device);
  }
  if (primary->references == 1) {
    lock.unlock();
    wait_for_context(*primary);
    lock.lock();
  }
  --primary->references;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context* primary = primary_of(device);
  wait_for_context(*primary);
  std::lock_guard lock(primary->mutex);
  primary->references = 0;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
  primary_of(device)->flags = flags;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  context* primary = primary_of(device);
  if (flags != nullptr) *flags = primary->flags;
  if (active != nullptr) *active = primary->references > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuDevicePrimaryCtxRetain>("cuDevicePrimaryCtxRetain", 7000),
    entry<&cuDevicePrimaryCtxRelease_v2>("cuDevicePrimaryCtxRelease", 11000),
    entry<&cuDevicePrimaryCtxReset_v2>("cuDevicePrimaryCtxReset", 11000),
    entry<&cuDevicePrimaryCtxSetFlags_v2>("cuDevicePrimaryCtxSetFlags", 11000),
    entry<&cuDevicePrimaryCtxGetState>("cuDevicePrimaryCtxGetState", 7000),
};
}
