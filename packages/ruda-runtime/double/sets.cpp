#include "arena.hpp"
#include "copies.hpp"
#include "entry.hpp"
#include "reports.hpp"

#include <algorithm>

namespace driver_double {

CUresult set_operation::check(moment when) const {
  if (width == 0 || rows == 0) return CUDA_SUCCESS;
  return check_range(when, call, "destination", to, (rows - 1) * pitch + width * element);
}

CUresult set_operation::run(stream&) {
  if (CUresult code = check(moment::running); code != CUDA_SUCCESS) return code;
  for (uint64_t row = 0; row < rows; ++row) {
    char* target = arena::get().view(to) + row * pitch;
    switch (element) {
      case 1: std::fill_n(reinterpret_cast<uint8_t*>(target), width, value); break;
      case 2: std::fill_n(reinterpret_cast<uint16_t*>(target), width, value); break;
      default: std::fill_n(reinterpret_cast<uint32_t*>(target), width, value); break;
    }
  }
  ++counters::get().sets;
  return CUDA_SUCCESS;
}

namespace {

CUresult set(const char* call, CUdeviceptr to, unsigned value, unsigned element, uint64_t width,
             uint64_t rows, uint64_t pitch, CUstream handle, bool synchronous) {
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (to % element != 0) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] destination 0x%llx is not a multiple of %u", call,
                  static_cast<unsigned long long>(to), element);
  }
  allocation_ref found = find_allocation(to);
  if (width * rows != 0 && found == nullptr) {
    return report(CUDA_ERROR_INVALID_VALUE, "[%s] destination 0x%llx is in no allocation", call,
                  static_cast<unsigned long long>(to));
  }
  auto work = std::make_shared<set_operation>(call, to, value, element, width, rows, pitch);
  if (CUresult code = work->check(moment::submitting); code != CUDA_SUCCESS) return code;
  position place;
  if (CUresult code = submit(call, *on, std::move(work), &place); code != CUDA_SUCCESS) return code;
  // Only fills of page-locked host memory are waited for.
  if (!synchronous || is_device_address(to) || place.on == nullptr) return CUDA_SUCCESS;
  on->wait(place.number);
  return on->take_failure();
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return set("cuMemsetD8", to, value, 1, count, 1, 0, nullptr, true);
}
DRIVER_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return set("cuMemsetD16", to, value, 2, count, 1, 0, nullptr, true);
}
DRIVER_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  return set("cuMemsetD32", to, value, 4, count, 1, 0, nullptr, true);
}
DRIVER_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                    CUstream on) {
  return set("cuMemsetD8Async", to, value, 1, count, 1, 0, on, false);
}
DRIVER_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                                     CUstream on) {
  return set("cuMemsetD16Async", to, value, 2, count, 1, 0, on, false);
}
DRIVER_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream on) {
  return set("cuMemsetD32Async", to, value, 4, count, 1, 0, on, false);
}
DRIVER_API CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value,
                                      size_t width, size_t rows, CUstream on) {
  return set("cuMemsetD2D8Async", to, value, 1, width, rows, pitch, on, false);
}
DRIVER_API CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value,
                                       size_t width, size_t rows, CUstream on) {
  return set("cuMemsetD2D16Async", to, value, 2, width, rows, pitch, on, false);
}
DRIVER_API CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width,
                                       size_t rows, CUstream on) {
  return set("cuMemsetD2D32Async", to, value, 4, width, rows, pitch, on, false);
}

namespace {
const entry_table entries{
    entry<&cuMemsetD8_v2>("cuMemsetD8", 3020),
    entry<&cuMemsetD16_v2>("cuMemsetD16", 3020),
    entry<&cuMemsetD32_v2>("cuMemsetD32", 3020),
    entry<&cuMemsetD8Async>("cuMemsetD8Async", 3020),
    entry<&cuMemsetD16Async>("cuMemsetD16Async", 3020),
    entry<&cuMemsetD32Async>("cuMemsetD32Async", 3020),
    entry<&cuMemsetD2D8Async>("cuMemsetD2D8Async", 3020),
    entry<&cuMemsetD2D16Async>("cuMemsetD2D16Async", 3020),
    entry<&cuMemsetD2D32Async>("cuMemsetD2D32Async", 3020),
};
}
