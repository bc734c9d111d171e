// The CUDA driver, found at run time: its functions and its errors as text.
#pragma once

#include <ruda/abi.h>

#include <string>

#include "types.hpp"

namespace ruda::native::cuda {

// One table a process. Versions are CUDA's: 1000 * major + 10 * minor.
constexpr int oldest_driver = 12000;

#define RUDA_DRIVER_FUNCTIONS(X)                                                                  \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorName, (CUresult code, const char** text))                                           \
  X(cuGetErrorString, (CUresult code, const char** text))                                         \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                                \
  X(cuDeviceGetName, (char* name, int length, CUdevice device))                                   \
  X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                           \
  X(cuDeviceTotalMem, (size_t * bytes, CUdevice device))                                          \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                             \
  X(cuDevicePrimaryCtxRelease, (CUdevice device))                                                 \
  X(cuCtxSetCurrent, (CUcontext context))                                                         \
  X(cuCtxSynchronize, ())                                                                         \
  X(cuMemGetInfo, (size_t * free, size_t* total))                                                 \
  X(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* properties))                     \
  X(cuMemPoolDestroy, (CUmemoryPool pool))                                                        \
  X(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void* value))                       \
  X(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void* value))                       \
  X(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep))                                            \
  X(cuMemAllocFromPoolAsync,                                                                      \
    (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))                    \
  X(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))                                       \
  X(cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                               \
  X(cuMemFreeHost, (void* pointer))                                                               \
  X(cuMemcpyHtoDAsync, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))         \
  X(cuMemcpyDtoHAsync, (void* to, CUdeviceptr from, size_t bytes, CUstream stream))               \
  X(cuMemcpyDtoDAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))         \
  X(cuMemcpy2DAsync, (const CUDA_MEMCPY2D* copy, CUstream stream))                                \
  X(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))        \
  X(cuStreamCreate, (CUstream * stream, unsigned flags))                                          \
  X(cuStreamDestroy, (CUstream stream))                                                           \
  X(cuStreamQuery, (CUstream stream))                                                             \
  X(cuStreamSynchronize, (CUstream stream))                                                       \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                          \
  X(cuStreamBeginCapture, (CUstream stream, int mode))                                            \
  X(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                       \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                               \
  X(cuGraphGetNodes, (CUgraph graph, CUgraphNode * nodes, size_t * count))                        \
  X(cuGraphDestroy, (CUgraph graph))                                                              \
  X(cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph graph, uint64_t flags))       \
  X(cuGraphExecUpdate,                                                                            \
    (CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo * info))                  \
  X(cuGraphExecDestroy, (CUgraphExec executable))                                                 \
  X(cuGraphLaunch, (CUgraphExec executable, CUstream stream))                                     \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                             \
  X(cuEventDestroy, (CUevent event))                                                              \
  X(cuEventRecord, (CUevent event, CUstream stream))                                              \
  X(cuEventQuery, (CUevent event))                                                                \
  X(cuEventSynchronize, (CUevent event))                                                          \
  X(cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))                        \
  X(cuModuleLoadDataEx,                                                                           \
    (CUmodule * module, const void* image, unsigned count, int* options, void** values))          \
  X(cuModuleUnload, (CUmodule module))                                                            \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))              \
  X(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                          \
  X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,      \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,       \
                     CUstream stream, void** parameters, void** extra))                           \
  X(cuLaunchCooperativeKernel,                                                                    \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,    \
     unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** parameters))

struct driver {
#define RUDA_DRIVER_MEMBER(name, arguments) CUresult(*name) arguments = nullptr;
  RUDA_DRIVER_FUNCTIONS(RUDA_DRIVER_MEMBER)
#undef RUDA_DRIVER_MEMBER
  // Of the driver double; null in a real driver.
  int (*describe)(const char* json) = nullptr;
  const char* (*last_report)() = nullptr;
  const char* (*failure)() = nullptr;  // of the work whose error this thread was given last
  int version = 0;
};

// Opens the library that is in the process already, or the system's; "" or what is missing.
std::string open_driver(driver& table);

// "13.0"
std::string version_text(int version);

// Fills `error` for a driver call that failed: the call, the error's name and text, what to do.
[[gnu::cold]] int32_t fail_call(const driver& table, const char* operation, const char* call,
                                CUresult code, ruda_error* error);

// "cuMemFreeAsync: CUDA_ERROR_INVALID_VALUE (invalid argument)"
std::string call_text(const driver& table, const char* call, CUresult code);
// What a user can do about it, a sentence.
const char* advice(CUresult code);
// Whether the error is that of earlier work: the driver then gives it for every call.
constexpr bool context_is_lost(CUresult code) {
  return code >= error_illegal_address && code < error_first_of_permissions &&
         code != error_launch_out_of_resources;
}

}  // namespace ruda::native::cuda
