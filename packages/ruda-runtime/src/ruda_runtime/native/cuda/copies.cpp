#include "copies.hpp"

#include <cstring>

#include <ruda/entry.hpp>

#include "../capture.hpp"
#include "../streams.hpp"
#include "pinned.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

// Up to here a copy through page-locked memory is cheaper than waiting for the stream.
constexpr size_t largest_staged = size_t{1} << 20;

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
    recording* into = nullptr;
    RUDA_TRY(place_work(id, "copy", &into, error));
    CUstream stream = nullptr;
    RUDA_TRY(stream_for(id, &stream, error));
    std::vector<int64_t> extent = sizes, step = strides;
    for (const int64_t size : extent)
      if (size == 0) return RUDA_OK;
    coalesce(extent, step);
    // The last dimension is a run of bytes, or single elements; the one before it the rows of a plane.
    if (extent.empty() || step.back() != 1) {
      extent.push_back(1);
      step.push_back(1);
    }
    CUDA_MEMCPY2D plane;
    plane.width_bytes = static_cast<size_t>(extent.back() * item);
    plane.target_pitch = plane.width_bytes;
    plane.height = 1;
    plane.source_pitch = plane.width_bytes;
    extent.pop_back();
    step.pop_back();
    const bool rows = !extent.empty() && step.back() * item >= static_cast<int64_t>(plane.width_bytes);
    if (rows) {
      plane.height = static_cast<size_t>(extent.back());
      plane.source_pitch = static_cast<size_t>(step.back() * item);
      extent.pop_back();
      step.pop_back();
    }
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
  });
}

}  // namespace ruda::native::cuda
