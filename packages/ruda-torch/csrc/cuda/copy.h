// Copies to, from and on a GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace ruda_torch {

// Counts a copy in execution_stats(), on either target.
void count_copy(const at::Tensor& target, const at::Tensor& source);

// target = source, broadcast and converted; at least one of them on ruda, the other there or on the
// CPU. Host memory that is not pinned can be used again when the call returns; pinned memory too, unless
// `non_blocking`.
void cuda_copy(const at::Tensor& target, const at::Tensor& source, bool non_blocking);

// The value of a tensor of one element; waits for it.
at::Scalar cuda_item(const at::Tensor& tensor);

}  // namespace ruda_torch
