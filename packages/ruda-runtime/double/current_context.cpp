#include "contexts.hpp"

#include "entry.hpp"
#include "reports.hpp"
#include "streams.hpp"

namespace driver_double {
namespace {
thread_local std::vector<context*> stack;  // the calling thread's contexts, the current one last
}

context* current_context() { return stack.empty() ? nullptr : stack.back(); }

CUresult need_context(const char* call, context** out) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  context* current = current_context();
  if (current == nullptr) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_CONTEXT,
                  "[%s] no context is current in this thread: retain the primary context and make "
                  "it current first",
                  call);
  }
  if (!current->active()) [[unlikely]] {
    return report(CUDA_ERROR_CONTEXT_IS_DESTROYED, "[%s] the thread's context was %s", call,
                  current->primary ? "released by its last user" : "destroyed");
  }
  *out = current;
  return CUDA_SUCCESS;
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (out == nullptr || (flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *out = make_context(device, false);
  (*out)->flags = flags;
  stack.push_back(*out);
  return CUDA_SUCCESS;
}

// Execution affinity and graphics interoperation are not there: `parameters` must be null.
DRIVER_API CUresult cuCtxCreate_v4(CUcontext* out, void* parameters, unsigned flags,
                                   CUdevice device) {
  if (parameters != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v2(out, flags, device);
}

DRIVER_API CUresult cuCtxDestroy_v2(CUcontext destroyed) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(destroyed) || destroyed->primary) {
    return report(CUDA_ERROR_INVALID_CONTEXT,
                  "[cuCtxDestroy] wanted a context made by cuCtxCreate and not destroyed yet");
  }
  wait_for_context(*destroyed);
  destroyed->is = handle::kind::dead;
  if (current_context() == destroyed) stack.pop_back();
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetCurrent(CUcontext* out) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = current_context();
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxSetCurrent(CUcontext wanted) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (wanted == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  if (!valid(wanted) || !wanted->active()) {
    return report(CUDA_ERROR_INVALID_CONTEXT, "[cuCtxSetCurrent] not a live context");
  }
  if (stack.empty()) {
    stack.push_back(wanted);
  } else {
    stack.back() = wanted;
  }
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxPushCurrent_v2(CUcontext wanted) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(wanted) || !wanted->active()) {
    return report(CUDA_ERROR_INVALID_CONTEXT, "[cuCtxPushCurrent] not a live context");
  }
  stack.push_back(wanted);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (stack.empty()) {
    return report(CUDA_ERROR_INVALID_CONTEXT, "[cuCtxPopCurrent] the thread's stack is empty");
  }
  if (out != nullptr) *out = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetDevice(CUdevice* out) {
  context* current = nullptr;
  if (CUresult code = need_context("cuCtxGetDevice", &current); code != CUDA_SUCCESS) return code;
  *out = current->device;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetDevice_v2(CUdevice* out, CUcontext of) {
  if (of == nullptr) return cuCtxGetDevice(out);
  if (!valid(of)) return CUDA_ERROR_INVALID_CONTEXT;
  *out = of->device;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetFlags(unsigned* flags) {
  context* current = nullptr;
  if (CUresult code = need_context("cuCtxGetFlags", &current); code != CUDA_SUCCESS) return code;
  *flags = current->flags;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetId(CUcontext of, uint64_t* id) {
  if (of == nullptr) {
    if (CUresult code = need_context("cuCtxGetId", &of); code != CUDA_SUCCESS) return code;
  }
  if (!valid(of)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = of->id;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetApiVersion(CUcontext of, unsigned* version) {
  if (of != nullptr && !valid(of)) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetLimit(size_t* value, int limit) {
  context* current = nullptr;
  if (CUresult code = need_context("cuCtxGetLimit", &current); code != CUDA_SUCCESS) return code;
  if (limit < 0 || limit > 9) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = current->limits[limit];
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxSetLimit(int limit, size_t value) {
  context* current = nullptr;
  if (CUresult code = need_context("cuCtxSetLimit", &current); code != CUDA_SUCCESS) return code;
  if (limit < 0 || limit > 9) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  current->limits[limit] = value;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  context* current = nullptr;
  if (CUresult code = need_context("cuCtxGetStreamPriorityRange", &current); code != CUDA_SUCCESS) {
    return code;
  }
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuCtxSynchronize() {
  context* current = nullptr;
  if (CUresult code = need_context("cuCtxSynchronize", &current); code != CUDA_SUCCESS) return code;
  return synchronize_context(*current);
}

DRIVER_API CUresult cuCtxSynchronize_v2(CUcontext of) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (of == nullptr) return cuCtxSynchronize();
  if (!valid(of)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return synchronize_context(*of);
}

namespace {
const entry_table entries{
    entry<&cuCtxCreate_v2>("cuCtxCreate", 3020),
    entry<&cuCtxCreate_v4>("cuCtxCreate", 12050),
    entry<&cuCtxDestroy_v2>("cuCtxDestroy", 4000),
    entry<&cuCtxGetCurrent>("cuCtxGetCurrent", 4000),
    entry<&cuCtxSetCurrent>("cuCtxSetCurrent", 4000),
    entry<&cuCtxPushCurrent_v2>("cuCtxPushCurrent", 4000),
    entry<&cuCtxPopCurrent_v2>("cuCtxPopCurrent", 4000),
    entry<&cuCtxGetDevice>("cuCtxGetDevice", 2000),
    entry<&cuCtxGetDevice_v2>("cuCtxGetDevice", 13000),
    entry<&cuCtxGetFlags>("cuCtxGetFlags", 7000),
    entry<&cuCtxGetId>("cuCtxGetId", 12000),
    entry<&cuCtxGetApiVersion>("cuCtxGetApiVersion", 3020),
    entry<&cuCtxGetLimit>("cuCtxGetLimit", 3010),
    entry<&cuCtxSetLimit>("cuCtxSetLimit", 3010),
    entry<&cuCtxGetStreamPriorityRange>("cuCtxGetStreamPriorityRange", 5050),
    entry<&cuCtxSynchronize>("cuCtxSynchronize", 2000),
    entry<&cuCtxSynchronize_v2>("cuCtxSynchronize", 13000),
};
}
