// What can be asked of a stream, and host functions in it.

#include "entry.hpp"
#include "host_functions.hpp"
#include "streams.hpp"

using namespace driver_double;

DRIVER_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamGetFlags", handle, &on); code != CUDA_SUCCESS) return code;
  *flags = on->flags;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamGetPriority", handle, &on); code != CUDA_SUCCESS)
    return code;
  *priority = on->priority;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamGetId", handle, &on); code != CUDA_SUCCESS) return code;
  *id = on->id;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* out) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamGetCtx", handle, &on); code != CUDA_SUCCESS) return code;
  *out = &on->in;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* out, void** green) {
  if (green != nullptr) *green = nullptr;
  return cuStreamGetCtx(handle, out);
}

DRIVER_API CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamGetDevice", handle, &on); code != CUDA_SUCCESS) return code;
  *device = on->in.device;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuLaunchHostFunc", handle, &on); code != CUDA_SUCCESS) return code;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return submit("cuLaunchHostFunc", *on, std::make_shared<host_operation>(function, data));
}

// cuLaunchHostFunc is the one to use; this one may not be captured.
DRIVER_API CUresult cuStreamAddCallback(CUstream handle,
                                        void (*function)(CUstream, CUresult, void*), void* data,
                                        unsigned flags) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamAddCallback", handle, &on); code != CUDA_SUCCESS)
    return code;
  if (CUresult code = refuse_capture("cuStreamAddCallback", *on); code != CUDA_SUCCESS) return code;
  if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return submit("cuStreamAddCallback", *on,
                std::make_shared<callback_operation>(function, handle, data));
}

namespace {
const entry_table entries{
    entry<&cuStreamGetFlags>("cuStreamGetFlags", 5050),
    entry<&cuStreamGetPriority>("cuStreamGetPriority", 5050),
    entry<&cuStreamGetId>("cuStreamGetId", 12000),
    entry<&cuStreamGetCtx>("cuStreamGetCtx", 9020),
    entry<&cuStreamGetCtx_v2>("cuStreamGetCtx", 12050),
    entry<&cuStreamGetDevice>("cuStreamGetDevice", 12080),
    entry<&cuLaunchHostFunc>("cuLaunchHostFunc", 10000),
    entry<&cuStreamAddCallback>("cuStreamAddCallback", 5000),
};
}
