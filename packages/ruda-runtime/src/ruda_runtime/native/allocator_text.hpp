// The error of a request that no memory is left for, the same text on every target.
#pragma once

#include <ruda/abi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ruda::native {

struct holder {
  size_t bytes;
  const char* kernel;  // the kernel that asked, or null
};

struct shortage {
  size_t asked;
  int64_t free;  // below 0: unknown
  int64_t allocated;
  int64_t blocks;
  int64_t reserved;
};

// Names the largest of `holders`, of which there may be any number.
int32_t fail_out_of_memory(const shortage& found, std::vector<holder> holders, ruda_error* error);

}  // namespace ruda::native
