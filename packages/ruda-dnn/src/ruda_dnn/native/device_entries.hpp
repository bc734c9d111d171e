/* What the device entries of this package share, on top of <ruda/device.hpp>. Their grids, blocks and
 * warps are those of the family's launch.py; tests/test_device_launches.py compares the two. */
#ifndef RUDA_DNN_DEVICE_ENTRIES_HPP
#define RUDA_DNN_DEVICE_ENTRIES_HPP

#include <cstdint>
#include <initializer_list>

#include <ruda/device.hpp>

namespace ruda {

/* Addresses (null: absent) that are all divisible by 16. */
inline bool aligned_to_16(std::initializer_list<const void*> addresses) noexcept {
  uintptr_t bits = 0;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return bits % 16 == 0;
}

inline const void* address_of(const ruda_view* view) noexcept {
  return view == nullptr ? nullptr : view->data;
}

}  // namespace ruda

#endif
