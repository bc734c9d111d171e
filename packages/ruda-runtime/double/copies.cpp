#include "copies.hpp"

#include "arena.hpp"
#include "capture.hpp"
#include "entry.hpp"
#include "reports.hpp"

#include <cstring>

namespace driver_double {

CUresult check_copy(moment when, const char* call, const copy_shape& shape) {
  CUresult code = check_range(when, call, "destination", shape.to, shape.to_span());
  if (code != CUDA_SUCCESS) return code;
  return check_range(when, call, "source", shape.from, shape.from_span());
}

CUresult copy_operation::run(stream&) {
  if (CUresult code = check_copy(moment::running, call, shape); code != CUDA_SUCCESS) return code;
  const arena& memory = arena::get();
  const char* source = staged.empty() ? memory.view(shape.from) : staged.data();
  char* target = memory.view(shape.to);
  for (uint64_t slice = 0; slice < shape.slices; ++slice) {
    for (uint64_t row = 0; row < shape.rows; ++row) {
      std::memmove(target + slice * shape.to_slice + row * shape.to_pitch,
                   source + slice * shape.from_slice + row * shape.from_pitch, shape.width);
    }
  }
  ++counters::get().copies;
  return CUDA_SUCCESS;
}

namespace {

bool pageable(uint64_t address, uint64_t bytes) {
  return !is_device_address(address) && !is_pinned(address, bytes);
}

CUresult check_directions(const char* call, const copy_shape& shape, char to, char from) {
  auto wrong = [&](const char* role, uint64_t address, char wanted) {
    bool device = is_device_address(address) || find_allocation(address) != nullptr;
    if (wanted != 'D' || device) return CUDA_SUCCESS;
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] %s: 0x%llx is no device address", call, role,
                  static_cast<unsigned long long>(address));
  };
  if (CUresult code = wrong("destination", shape.to, to); code != CUDA_SUCCESS) return code;
  if (CUresult code = wrong("source", shape.from, from); code != CUDA_SUCCESS) return code;
  auto host = [&](const char* role, uint64_t address, char wanted) {
    if (wanted != 'H' || !is_device_address(address)) return CUDA_SUCCESS;
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] %s: 0x%llx is device memory, wanted host memory",
                  call, role, static_cast<unsigned long long>(address));
  };
  if (CUresult code = host("destination", shape.to, to); code != CUDA_SUCCESS) return code;
  return host("source", shape.from, from);
}

// What the driver documents: from pageable memory, the source is staged before the call returns; to
// pageable memory, and from host to host, the call returns when the copy is done; between device
// and page-locked memory, and inside the device, nothing is waited for.
CUresult copy(const char* call, const copy_shape& shape, char to, char from, CUstream handle,
              bool synchronous) {
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (synchronous) {
    if (CUresult code = refuse_unsafe(call); code != CUDA_SUCCESS) return code;
  }
  if (shape.width == 0 || shape.rows == 0 || shape.slices == 0) return CUDA_SUCCESS;
  if (CUresult code = check_directions(call, shape, to, from); code != CUDA_SUCCESS) return code;
  if (CUresult code = check_copy(moment::submitting, call, shape); code != CUDA_SUCCESS)
    return code;
  auto work = std::make_shared<copy_operation>(call, shape);
  const bool from_pageable = pageable(shape.from, shape.from_span());
  const bool to_pageable = pageable(shape.to, shape.to_span());
  if (on->capturing != nullptr) {
    // The graph's node reads and writes host memory when it runs.
    return submit(call, *on, std::move(work));
  }
  const bool to_device = is_device_address(shape.to);
  if (from_pageable && to_device) {
    if (synchronous) {
      if (CUresult code = synchronize(*on); code != CUDA_SUCCESS) return code;
    }
    const char* source = reinterpret_cast<const char*>(shape.from);
    work->staged.assign(source, source + shape.from_span());
  }
  const bool inside_device = to_device && is_device_address(shape.from);
  const bool wait = to_pageable ||
                    (synchronous && !inside_device && !(from_pageable && to_device)) ||
                    (from_pageable && !to_device);
  position place;
  if (CUresult code = submit(call, *on, std::move(work), &place); code != CUDA_SUCCESS) return code;
  if (!wait) return CUDA_SUCCESS;
  on->wait(place.number);
  return on->take_failure();
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult shape_2d(const CUDA_MEMCPY2D& wanted, copy_shape* out) {
  auto place = [](unsigned type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? address_of(host) : device;
  };
  if (wanted.srcMemoryType == CU_MEMORYTYPE_ARRAY || wanted.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  uint64_t from_pitch = wanted.srcPitch != 0 ? wanted.srcPitch : wanted.WidthInBytes;
  uint64_t to_pitch = wanted.dstPitch != 0 ? wanted.dstPitch : wanted.WidthInBytes;
  if (from_pitch < wanted.WidthInBytes || to_pitch < wanted.WidthInBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  out->from = place(wanted.srcMemoryType, wanted.srcHost, wanted.srcDevice) +
              wanted.srcY * from_pitch + wanted.srcXInBytes;
  out->to = place(wanted.dstMemoryType, wanted.dstHost, wanted.dstDevice) + wanted.dstY * to_pitch +
            wanted.dstXInBytes;
  out->width = wanted.WidthInBytes;
  out->rows = wanted.Height;
  out->from_pitch = from_pitch;
  out->to_pitch = to_pitch;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy("cuMemcpy", {to, from, bytes}, '?', '?', nullptr, true);
}

DRIVER_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream on) {
  return copy("cuMemcpyAsync", {to, from, bytes}, '?', '?', on, false);
}

DRIVER_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy("cuMemcpyHtoD", {to, address_of(from), bytes}, 'D', 'H', nullptr, true);
}

DRIVER_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                         CUstream on) {
  return copy("cuMemcpyHtoDAsync", {to, address_of(from), bytes}, 'D', 'H', on, false);
}

DRIVER_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy("cuMemcpyDtoH", {address_of(to), from, bytes}, 'H', 'D', nullptr, true);
}

DRIVER_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream on) {
  return copy("cuMemcpyDtoHAsync", {address_of(to), from, bytes}, 'H', 'D', on, false);
}

DRIVER_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy("cuMemcpyDtoD", {to, from, bytes}, 'D', 'D', nullptr, true);
}

DRIVER_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                         CUstream on) {
  return copy("cuMemcpyDtoDAsync", {to, from, bytes}, 'D', 'D', on, false);
}

DRIVER_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* wanted, CUstream on) {
  copy_shape shape;
  if (CUresult code = shape_2d(*wanted, &shape); code != CUDA_SUCCESS) return code;
  return copy("cuMemcpy2DAsync", shape, '?', '?', on, false);
}

DRIVER_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* wanted) {
  copy_shape shape;
  if (CUresult code = shape_2d(*wanted, &shape); code != CUDA_SUCCESS) return code;
  return copy("cuMemcpy2D", shape, '?', '?', nullptr, true);
}

namespace {
const entry_table entries{
    entry<&cuMemcpy>("cuMemcpy", 4000),
    entry<&cuMemcpyAsync>("cuMemcpyAsync", 4000),
    entry<&cuMemcpyHtoD_v2>("cuMemcpyHtoD", 3020),
    entry<&cuMemcpyHtoDAsync_v2>("cuMemcpyHtoDAsync", 3020),
    entry<&cuMemcpyDtoH_v2>("cuMemcpyDtoH", 3020),
    entry<&cuMemcpyDtoHAsync_v2>("cuMemcpyDtoHAsync", 3020),
    entry<&cuMemcpyDtoD_v2>("cuMemcpyDtoD", 3020),
    entry<&cuMemcpyDtoDAsync_v2>("cuMemcpyDtoDAsync", 3020),
    entry<&cuMemcpy2D_v2>("cuMemcpy2D", 3020),
    entry<&cuMemcpy2D_v2>("cuMemcpy2DUnaligned", 3020),
    entry<&cuMemcpy2DAsync_v2>("cuMemcpy2DAsync", 3020),
};
}
