/* What the device entries of this package share, on top of <ruda/device.hpp>. Their grids, blocks and
 * warps are those of the family's launch.py; tests/test_device_launches.py compares the two. */
#ifndef RUDA_DNN_DEVICE_ENTRIES_HPP
#define RUDA_DNN_DEVICE_ENTRIES_HPP

#include <cstdint>
#include <initializer_list>
#include <limits>

#include <ruda/device.hpp>

namespace ruda {

inline int64_t ceil_div(int64_t value, int64_t by) noexcept { return (value + by - 1) / by; }

/* Addresses (null: absent) that are all divisible by 16. */
inline bool aligned_to_16(std::initializer_list<const void*> addresses) noexcept {
  uintptr_t bits = 0;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return bits % 16 == 0;
}

inline const void* address_of(const ruda_view* view) noexcept {
  return view == nullptr ? nullptr : view->data;
}

/* A number that the kernels take as 32 bits, or that is a grid's extent (65535 in y and z). */
inline int32_t check_device_limit(int64_t value, const char* operation, const char* what,
                                  ruda_error* error,
                                  int64_t limit = std::numeric_limits<int32_t>::max()) {
  RUDA_CHECK(value <= limit, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] %s: got %lld, wanted at most %lld on the cuda target", operation, what,
             static_cast<long long>(value), static_cast<long long>(limit));
  return RUDA_OK;
}

constexpr int64_t largest_grid_y = 65535;

/* Programs that check_device_limit has seen. */
inline grid programs(int64_t x, int64_t y = 1) noexcept {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(y), 1};
}

}  // namespace ruda

#endif
