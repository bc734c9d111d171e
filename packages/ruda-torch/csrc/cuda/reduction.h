// Reductions on a GPU: the kernels of ruda_dnn/reduction/launch.py by name, with its choices.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ruda_torch::cuda {

// finish(combine(map(x))); see the kernels' README. `parameter` is the mean's count, or the norm's
// power.
struct Reduction {
  const char* combine;
  const char* map = "value";
  const char* finish = "value";
  double parameter = 0;
};

// The iterator's output from its one input.
void reduce(const char* operation, at::TensorIterator& iterator, const Reduction& kind);

// Where the largest or least value of the iterator's one reduced dimension is first.
void locate(const char* operation, at::TensorIterator& iterator, bool largest);

// The same along a dimension of a tensor, with the values; both results are contiguous and have
// the sizes that are left.
void locate(const char* operation, const at::Tensor& self, int64_t dim, bool largest,
            const at::Tensor& values, const at::Tensor& indices);

// out[i] = source[0] + ... + source[i] along `dim`; both contiguous, of the same sizes.
void cumulate(const char* operation, const at::Tensor& source, const at::Tensor& out, int64_t dim);

}  // namespace ruda_torch::cuda
