// Images of device kernels (cubin or PTX) loaded into the context.
#pragma once

#include <ruda/abi.h>

#include <string>

#include "types.hpp"

namespace ruda::native::cuda {

struct image {
  std::string hash;   // sha256 of the bytes, which says whether it is loaded already
  std::string bytes;  // a cubin, or PTX text
  std::string entry;
  std::string description;  // JSON for the driver double, see ruda_runtime.testing
  unsigned shared_bytes = 0;
};

// The entry's function, ready for shared_bytes. `kernel` names it in errors.
int32_t load_function(const image& source, const char* kernel, CUfunction* function,
                      ruda_error* error) noexcept;

int64_t loaded_modules() noexcept;
void unload_modules() noexcept;

}  // namespace ruda::native::cuda
