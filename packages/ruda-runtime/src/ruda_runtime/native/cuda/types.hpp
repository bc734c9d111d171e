// The types and numbers of the CUDA driver interface that this module uses, spelled as the driver's
// documentation spells them. Written out here, so that a build needs no CUDA toolkit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ruda::native::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUgraphNode = struct CUgraphNode_st*;

// CUresult
constexpr CUresult success = 0;
constexpr CUresult error_invalid_value = 1;
constexpr CUresult error_out_of_memory = 2;
constexpr CUresult error_stub_library = 34;
constexpr CUresult error_no_device = 100;
constexpr CUresult error_invalid_image = 200;
constexpr CUresult error_no_binary_for_gpu = 209;
constexpr CUresult error_invalid_ptx = 218;
constexpr CUresult error_unsupported_ptx_version = 222;
constexpr CUresult error_not_ready = 600;
constexpr CUresult error_illegal_address = 700;
constexpr CUresult error_launch_out_of_resources = 701;
constexpr CUresult error_launch_failed = 719;
constexpr CUresult error_first_of_permissions = 800;
constexpr CUresult error_system_driver_mismatch = 803;
constexpr CUresult error_compat_not_supported = 804;

// CUdevice_attribute
constexpr int attribute_max_threads_per_block = 1;
constexpr int attribute_max_shared_memory_per_block = 8;
constexpr int attribute_warp_size = 10;
constexpr int attribute_multiprocessor_count = 16;
constexpr int attribute_capability_major = 75;
constexpr int attribute_capability_minor = 76;
constexpr int attribute_cooperative_launch = 95;
constexpr int attribute_max_shared_memory_per_block_optin = 97;
constexpr int attribute_memory_pools_supported = 115;

// Flags
constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned host_alloc_portable = 1;
constexpr unsigned memory_type_device = 2;

// CUstreamCaptureMode
constexpr int capture_thread_local = 1;
constexpr int capture_relaxed = 2;

// CUfunction_attribute
constexpr int function_max_dynamic_shared = 8;

// CUmemPool_attribute
constexpr int pool_release_threshold = 4;
constexpr int pool_reserved_current = 5;
constexpr int pool_reserved_high = 6;

// CUjit_option
constexpr int jit_error_log_buffer = 5;
constexpr int jit_error_log_buffer_bytes = 6;

struct CUmemPoolProps {
  int allocation_type = 1;  // pinned device memory
  int handle_types = 0;     // not shared with other processes
  struct {
    int type = 1;  // a device
    int id = 0;
  } location;
  void* security_attributes = nullptr;
  size_t max_size = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};
static_assert(sizeof(CUmemPoolProps) == 88);

struct CUgraphExecUpdateResultInfo {
  int result = 0;
  CUgraphNode error_node = nullptr;
  CUgraphNode error_from_node = nullptr;
};
static_assert(sizeof(CUgraphExecUpdateResultInfo) == 24);

struct CUDA_MEMCPY2D {
  size_t source_x = 0, source_y = 0;
  unsigned source_type = memory_type_device;
  const void* source_host = nullptr;
  CUdeviceptr source_device = 0;
  void* source_array = nullptr;
  size_t source_pitch = 0;
  size_t target_x = 0, target_y = 0;
  unsigned target_type = memory_type_device;
  void* target_host = nullptr;
  CUdeviceptr target_device = 0;
  void* target_array = nullptr;
  size_t target_pitch = 0;
  size_t width_bytes = 0;
  size_t height = 0;
};
static_assert(sizeof(CUDA_MEMCPY2D) == 128);

}  // namespace ruda::native::cuda
