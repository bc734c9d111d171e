// Fills, and what is computed from an element's index alone, on the cuda target.

#include "cuda/pointwise_forms.h"

#include <ATen/native/Copy.h>
#include <ATen/native/Fill.h>
#include <ATen/native/RangeFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/fill_native.h>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

// ATen refuses what the dtype does not hold, but for tensors of one element.
void fill(at::TensorIterator& iterator, const Scalar& value) {
  const auto type = iterator.dtype(0);
  if (iterator.numel() != 1) {
    if (type == at::kHalf) static_cast<void>(value.to<at::Half>());
    if (type == at::kBFloat16) static_cast<void>(value.to<at::BFloat16>());
  }
  pointwise("copy", iterator, type, {value});
}

void copy(at::TensorIterator& iterator, bool /*non_blocking*/) {
  pointwise("copy", iterator, iterator.dtype(1));
}

Tensor& fill_tensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0,
              "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (self.device() != value.device()) return self.fill_(at::_local_scalar_dense(value));
  device_copy(self, value.expand(self.sizes()));
  return self;
}

void fill_range(at::TensorIterator& iterator, const Scalar& start, const Scalar& /*steps*/,
                const Scalar& step) {
  arange(iterator.tensor(0), start, step);
}

RUDA_CUDA_OPERATORS(library) {
  stub::use_on_cuda<native::fill_stub>(&fill);
  stub::use_on_cuda<native::copy_stub>(&copy);
  stub::use_only_on_cuda<native::arange_stub>(&fill_range);
  library.impl("aten::fill_.Tensor", TORCH_FN(fill_tensor));
  using Arange = Tensor& (*)(const Scalar&, const Scalar&, const Scalar&, Tensor&);
  constexpr Arange arange_out = &native::arange_out;
  library.impl("aten::arange.start_out", TORCH_FN(*arange_out));
}

}  // namespace

}  // namespace ruda_torch::cuda
