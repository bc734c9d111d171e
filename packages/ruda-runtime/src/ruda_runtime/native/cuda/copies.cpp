#include "copies.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include <ruda/device.hpp>

#include "../capture.hpp"
#include "../streams.hpp"
#include "pinned.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

// Up to here a copy through page-locked memory is cheaper than waiting for the stream.
constexpr size_t largest_staged = size_t{1} << 20;

// Up to here the driver's copies of a strided view are cheaper than a kernel that may have to be compiled.
constexpr int64_t most_planes = 16;
constexpr int64_t most_narrow_rows = 4096;
constexpr size_t narrow = 16;

// The kernel of ruda_runtime/copies/launch.py.
constexpr size_t kernel_rank = 6;
constexpr int64_t kernel_block = 1024;

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

int32_t stream_for(int32_t id, CUstream* stream, ruda_error* error) {
  ruda_error failure{};
  *stream = driver_stream(id, "copy", &failure);
  if (*stream != nullptr) return RUDA_OK;
  if (error != nullptr) *error = failure;
  return failure.code;
}

// Behind a call on the stream: waits in synchronous dispatch, or notes what a capture now has.
int32_t settle(recording* into, const char* name, const void* to, const void* from, int32_t id,
               ruda_error* error) {
  if (into != nullptr) [[unlikely]] {
    const void* pointers[] = {to, from};
    return record_device_work(*into, name, nullptr, pointers, 2, error);
  }
  return asynchronous() == 0 ? synchronize(id, error) : RUDA_OK;
}

int32_t upload_staged(void* to, const void* from, size_t bytes, CUstream stream, int32_t id,
                      ruda_error* error) {
  void* staging = allocate_pinned(bytes, error);
  if (staging == nullptr) return RUDA_ERROR_MEMORY;
  std::memcpy(staging, from, bytes);
  const CUresult code = api().cuMemcpyHtoDAsync(address_of(to), staging, bytes, stream);
  int32_t status = code == success ? note_pinned_use(staging, id, error)
                                   : fail_work("copy", "cuMemcpyHtoDAsync", code, id, error);
  release_pinned(staging);
  return status;
}

// The dimensions without size 1, neighbours joined where their elements follow each other.
void coalesce(std::vector<int64_t>& sizes, std::vector<int64_t>& strides) {
  size_t kept = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (kept != 0 && strides[kept - 1] == sizes[i] * strides[i]) {
      sizes[kept - 1] *= sizes[i];
      strides[kept - 1] = strides[i];
    } else {
      sizes[kept] = sizes[i];
      strides[kept] = strides[i];
      ++kept;
    }
  }
  sizes.resize(kept);
  strides.resize(kept);
}

struct planes {
  CUDA_MEMCPY2D plane;
  std::vector<int64_t> extent, step;  // of the dimensions that have a plane for each index
  int64_t count = 1;

  bool few() const {
    const bool slow = plane.width_bytes < narrow &&
                      count * static_cast<int64_t>(plane.height) > most_narrow_rows;
    return count <= most_planes && !slow;
  }
};

// The last dimension is a run of bytes, or single elements; the one before it the rows of a plane.
planes cut(std::vector<int64_t> extent, std::vector<int64_t> step, int64_t item) {
  planes result;
  CUDA_MEMCPY2D& plane = result.plane;
  if (extent.empty() || step.back() != 1) {
    extent.push_back(1);
    step.push_back(1);
  }
  plane.width_bytes = static_cast<size_t>(extent.back() * item);
  plane.target_pitch = plane.width_bytes;
  plane.height = 1;
  plane.source_pitch = plane.width_bytes;
  extent.pop_back();
  step.pop_back();
  if (!extent.empty() && step.back() * item >= static_cast<int64_t>(plane.width_bytes)) {
    plane.height = static_cast<size_t>(extent.back());
    plane.source_pitch = static_cast<size_t>(step.back() * item);
    extent.pop_back();
    step.pop_back();
  }
  for (const int64_t size : extent) result.count *= size;
  result.extent = std::move(extent);
  result.step = std::move(step);
  return result;
}

int32_t integer_of(int64_t item) {
  switch (item) {
    case 1: return RUDA_INT8;
    case 2: return RUDA_INT16;
    case 4: return RUDA_INT32;
    default: return RUDA_INT64;
  }
}

// RUDA_ERROR_UNSUPPORTED where there is no code for it and nothing to compile it with.
int32_t gather_by_kernel(void* to, const void* from, const std::vector<int64_t>& extent,
                         const std::vector<int64_t>& step, int64_t item, int64_t count, int32_t id,
                         ruda_error* error) {
  static ruda::device_kernel kernel{"copies.gather"};
  std::array<int64_t, kernel_rank> sizes, strides;
  sizes.fill(1);
  strides.fill(0);
  std::copy(extent.begin(), extent.end(), sizes.end() - static_cast<ptrdiff_t>(extent.size()));
  std::copy(step.begin(), step.end(), strides.end() - static_cast<ptrdiff_t>(step.size()));
  std::vector<ruda_argument> arguments{ruda::pointer(from, integer_of(item)),
                                       ruda::pointer(to, integer_of(item)), ruda::integer(count)};
  for (size_t i = 1; i < kernel_rank; ++i) arguments.push_back(ruda::integer(sizes[i]));
  for (const int64_t each : strides) arguments.push_back(ruda::integer(each));
  arguments.push_back(ruda::integer(extent.size() <= 3 ? 3 : kernel_rank));
  arguments.push_back(ruda::integer(kernel_block));
  const auto programs = static_cast<uint32_t>((count + kernel_block - 1) / kernel_block);
  const int32_t outer = current_stream();
  if (outer != id) enter_stream(id);
  const int32_t status = kernel.launch_list({programs}, {}, error, arguments.data(),
                                            static_cast<int32_t>(arguments.size()));
  if (outer != id) enter_stream(outer);
  return status;
}

int32_t gather_by_planes(void* to, const void* from, planes& parts, int64_t item, int32_t id,
                         ruda_error* error) {
  recording* into = nullptr;
  RUDA_TRY(place_work(id, "copy", &into, error));
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  CUDA_MEMCPY2D& plane = parts.plane;
  const std::vector<int64_t>&extent = parts.extent, &step = parts.step;
  auto source = address_of(from), target = address_of(to);
  std::vector<int64_t> index(extent.size(), 0);
  for (;;) {
    plane.source_device = source;
    plane.target_device = target;
    if (const CUresult code = api().cuMemcpy2DAsync(&plane, stream); code != success)
      return fail_work("copy", "cuMemcpy2DAsync", code, id, error);
    if (into != nullptr) RUDA_TRY(settle(into, "copy", to, from, id, error));
    target += plane.width_bytes * plane.height;
    size_t dim = extent.size();
    for (; dim > 0; --dim) {
      source += static_cast<CUdeviceptr>(step[dim - 1] * item);
      if (++index[dim - 1] < extent[dim - 1]) break;
      source -= static_cast<CUdeviceptr>(step[dim - 1] * item * extent[dim - 1]);
      index[dim - 1] = 0;
    }
    if (dim == 0) break;
  }
  return into != nullptr ? RUDA_OK : settle(into, "copy", to, from, id, error);
}

}  // namespace

int32_t upload(void* to, const void* from, size_t bytes, int32_t id, ruda_error* error) noexcept {
  if (bytes == 0) return RUDA_OK;
  RUDA_TRY(refuse_captured(id, "copy to the GPU", error));
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  if (is_pinned(from, bytes)) {
    if (const CUresult code = api().cuMemcpyHtoDAsync(address_of(to), from, bytes, stream); code != success)
      return fail_work("copy", "cuMemcpyHtoDAsync", code, id, error);
    RUDA_TRY(note_pinned_use(from, id, error));
    return settle(nullptr, "copy", nullptr, nullptr, id, error);
  }
  if (bytes <= largest_staged && asynchronous() != 0)
    return upload_staged(to, from, bytes, stream, id, error);
  if (const CUresult code = api().cuMemcpyHtoDAsync(address_of(to), from, bytes, stream); code != success)
      return fail_work("copy", "cuMemcpyHtoDAsync", code, id, error);
  return synchronize(id, error);
}

int32_t download(void* to, const void* from, size_t bytes, int32_t id, ruda_error* error) noexcept {
  if (bytes == 0) return RUDA_OK;
  RUDA_TRY(refuse_captured(id, "copy to the host", error));
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  if (const CUresult code = api().cuMemcpyDtoHAsync(to, address_of(from), bytes, stream); code != success)
      return fail_work("copy", "cuMemcpyDtoHAsync", code, id, error);
  if (is_pinned(to, bytes)) {
    RUDA_TRY(note_pinned_use(to, id, error));
    return settle(nullptr, "copy", nullptr, nullptr, id, error);
  }
  return synchronize(id, error);
}

int32_t copy_on_device(void* to, const void* from, size_t bytes, int32_t id,
                       ruda_error* error) noexcept {
  if (bytes == 0) return RUDA_OK;
  recording* into = nullptr;
  RUDA_TRY(place_work(id, "copy", &into, error));
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  if (const CUresult code = api().cuMemcpyDtoDAsync(address_of(to), address_of(from), bytes, stream); code != success)
      return fail_work("copy", "cuMemcpyDtoDAsync", code, id, error);
  return settle(into, "copy", to, from, id, error);
}

int32_t fill(void* to, uint8_t value, size_t bytes, int32_t id, ruda_error* error) noexcept {
  if (bytes == 0) return RUDA_OK;
  recording* into = nullptr;
  RUDA_TRY(place_work(id, "fill", &into, error));
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  if (const CUresult code = api().cuMemsetD8Async(address_of(to), value, bytes, stream); code != success)
      return fail_work("fill", "cuMemsetD8Async", code, id, error);
  return settle(into, "fill", to, nullptr, id, error);
}

int32_t gather(void* to, const void* from, const std::vector<int64_t>& sizes,
               const std::vector<int64_t>& strides, int64_t item, int32_t id,
               ruda_error* error) noexcept {
  return guard("copy", error, [&]() -> int32_t {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    if (count == 0) return RUDA_OK;
    std::vector<int64_t> extent = sizes, step = strides;
    coalesce(extent, step);
    planes parts = cut(extent, step, item);
    const bool fits = extent.size() <= kernel_rank && count <= INT32_MAX - kernel_block;
    static std::atomic<bool> no_code{false};  // and nothing to compile it with
    if (fits && !parts.few() && !no_code.load(std::memory_order_relaxed)) {
      ruda_error unheard;
      const int32_t status = gather_by_kernel(to, from, extent, step, item, count, id, &unheard);
      if (status == RUDA_OK) return RUDA_OK;
      if (status != RUDA_ERROR_UNSUPPORTED) {
        if (error != nullptr) *error = unheard;
        return status;
      }
      no_code.store(true, std::memory_order_relaxed);
    }
    return gather_by_planes(to, from, parts, item, id, error);
  });
}

}  // namespace ruda::native::cuda
