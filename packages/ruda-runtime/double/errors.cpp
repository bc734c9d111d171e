#include "entry.hpp"

using namespace driver_double;

namespace {

struct named_error {
  CUresult code;
  const char* name;
  const char* text;
};

#define NAMED(code, text) {code, #code, text}
constexpr named_error errors[] = {
    NAMED(CUDA_SUCCESS, "no error"),
    NAMED(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    NAMED(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    NAMED(CUDA_ERROR_NOT_INITIALIZED, "driver not initialised"),
    NAMED(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    NAMED(CUDA_ERROR_NO_DEVICE, "no CUDA device is there"),
    NAMED(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    NAMED(CUDA_ERROR_INVALID_IMAGE, "invalid kernel image"),
    NAMED(CUDA_ERROR_INVALID_CONTEXT, "invalid or no current context"),
    NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU, "no code in the image for this device"),
    NAMED(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit not supported"),
    NAMED(CUDA_ERROR_INVALID_PTX, "invalid PTX"),
    NAMED(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX newer than the driver"),
    NAMED(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    NAMED(CUDA_ERROR_OPERATING_SYSTEM, "an operating system call failed"),
    NAMED(CUDA_ERROR_INVALID_HANDLE, "invalid handle"),
    NAMED(CUDA_ERROR_ILLEGAL_STATE, "not valid in this state"),
    NAMED(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    NAMED(CUDA_ERROR_NOT_READY, "not ready"),
    NAMED(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal memory access"),
    NAMED(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources asked for a launch"),
    NAMED(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context already active"),
    NAMED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory already registered"),
    NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory not registered"),
    NAMED(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    NAMED(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed"),
    NAMED(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks for a cooperative launch"),
    NAMED(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    NAMED(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted while a stream captures"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture failed before"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would become one"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began on another stream"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream of the capture was not joined"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a capture may not depend on outside work"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "implicit use of the default stream in a capture"),
    NAMED(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture belongs to another thread"),
    NAMED(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the executable graph cannot be updated so"),
    NAMED(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef NAMED

const named_error* find(CUresult code) {
  for (const named_error& each : errors) {
    if (each.code == code) return &each;
  }
  return nullptr;
}

}  // namespace

DRIVER_API CUresult cuGetErrorName(CUresult code, const char** name) {
  const named_error* found = find(code);
  *name = found != nullptr ? found->name : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DRIVER_API CUresult cuGetErrorString(CUresult code, const char** text) {
  const named_error* found = find(code);
  *text = found != nullptr ? found->text : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

namespace {
const entry_table entries{
    entry<&cuGetErrorName>("cuGetErrorName", 6000),
    entry<&cuGetErrorString>("cuGetErrorString", 6000),
};
}
