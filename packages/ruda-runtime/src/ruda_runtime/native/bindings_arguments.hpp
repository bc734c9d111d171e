// Python's arguments of a device kernel as the runtime's.
#pragma once

#include <pybind11/pybind11.h>

#include "cuda/kernel.hpp"

namespace ruda::native {

struct kernel_arguments {
  // Positional arguments first, then by name; `options` takes num_warps and num_stages where they are
  // allowed. Raises the Python exception for what does not fit. The objects must stay alive.
  kernel_arguments(const ruda_device_kernel& kernel, const pybind11::tuple& positional,
                   const pybind11::dict& named, bool with_options);

  ruda_argument list[cuda::max_parameters];
  int32_t count = 0;
  ruda_launch_options options{0, 0};
};

// 7, (7,), (7, 2) or (7, 2, 1).
void read_grid(const ruda_device_kernel& kernel, const pybind11::handle& grid, uint32_t extent[3]);

// (name, type, bits, signed, dtypes, optional, divisible, one)
cuda::parameter read_parameter(const pybind11::handle& fields);

}  // namespace ruda::native
