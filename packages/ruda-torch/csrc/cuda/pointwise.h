// Pointwise device kernels.
#pragma once

#include <ATen/core/Tensor.h>

namespace ruda_torch {

// target = source, converted; both on ruda, of the same sizes and any strides.
void device_copy(const at::Tensor& target, const at::Tensor& source);

}  // namespace ruda_torch
