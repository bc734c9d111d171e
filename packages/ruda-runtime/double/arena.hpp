// The memory behind every device address: one memfd, mapped by the interpreting server at the same
// address. In this process device memory is reserved there without access, so that host code which
// follows a device pointer crashes as it would with a GPU; the double itself works on a second
// mapping. Pinned and managed memory lies in the part behind it and is accessible.
#pragma once

#include <cstdint>

namespace driver_double {

class arena {
 public:
  static arena& get();

  bool open();

  uint64_t device_begin() const { return base_; }
  uint64_t device_end() const { return base_ + device_size_; }
  uint64_t host_begin() const { return base_ + device_size_; }
  uint64_t host_end() const { return base_ + device_size_ + host_size_; }
  int descriptor() const { return descriptor_; }

  bool is_device(uint64_t address) const {
    return address >= device_begin() && address < device_end();
  }

  // Where this process may read and write what device code has at `address`; any other address is
  // host memory and comes back as it is.
  char* view(uint64_t address) const {
    return is_device(address) ? alias_ + (address - base_) : reinterpret_cast<char*>(address);
  }

  // Gives the pages of a range back to the system.
  void discard(uint64_t address, uint64_t bytes) const;

 private:
  uint64_t base_ = 0, device_size_ = 0, host_size_ = 0;
  char* alias_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace driver_double
