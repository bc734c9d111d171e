// ATen's softmax and log_softmax with their backwards on ruda-dnn's kernels. What these do not take
// (float64, empty tensors, other dtypes of the result) goes to ATen's CPU kernel.

#include "boxed.h"
#include "native_launch.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ruda/dnn.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Tensor;

bool fits(const Tensor& tensor, int64_t dim) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.is_privateuseone() && tensor.numel() > 0 && tensor.dim() >= 1 &&
         dim >= -tensor.dim() && dim < tensor.dim() &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
}

Tensor forward(const Tensor& self, int64_t dim, bool half_to_float, bool logarithm,
               const BoxedOperator& boxed) {
  static const Kernel kernel("softmax.forward", ruda::softmax_forward_args_layout);
  if (!fits(self, dim) || half_to_float) {
    return boxed.call<Tensor, const Tensor&, int64_t, bool>(self, dim, half_to_float);
  }
  const Tensor x = self.contiguous();
  Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  Views views(logarithm ? "log_softmax" : "softmax");
  const ruda::softmax_forward_args args{views(x, "x"), views(y, "y"),
                                        at::maybe_wrap_dim(dim, x.dim()), logarithm};
  kernel.launch(&args);
  return y;
}

Tensor backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType input_dtype,
                bool logarithm, const BoxedOperator& boxed) {
  static const Kernel kernel("softmax.backward", ruda::softmax_backward_args_layout);
  if (!fits(output, dim) || !grad.is_privateuseone() || grad.sizes() != output.sizes() ||
      grad.scalar_type() != output.scalar_type() || output.scalar_type() != input_dtype) {
    return boxed.call<Tensor, const Tensor&, const Tensor&, int64_t, at::ScalarType>(
        grad, output, dim, input_dtype);
  }
  const Tensor upper = grad.contiguous();
  const Tensor y = output.contiguous();
  Tensor dx = at::empty_like(y, at::MemoryFormat::Contiguous);
  Views views(logarithm ? "log_softmax_backward" : "softmax_backward");
  const ruda::softmax_backward_args args{views(upper, "grad"), views(y, "y"), views(dx, "dx"),
                                         at::maybe_wrap_dim(dim, y.dim()), logarithm};
  kernel.launch(&args);
  return dx;
}

Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  static const BoxedOperator boxed("aten::_softmax");
  return forward(self, dim, half_to_float, false, boxed);
}

Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  static const BoxedOperator boxed("aten::_log_softmax");
  return forward(self, dim, half_to_float, true, boxed);
}

Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim,
                        at::ScalarType input_dtype) {
  static const BoxedOperator boxed("aten::_softmax_backward_data");
  return backward(grad, output, dim, input_dtype, false, boxed);
}

Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim,
                            at::ScalarType input_dtype) {
  static const BoxedOperator boxed("aten::_log_softmax_backward_data");
  return backward(grad, output, dim, input_dtype, true, boxed);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_softmax", TORCH_FN(softmax));
  library.impl("_log_softmax", TORCH_FN(log_softmax));
  library.impl("_softmax_backward_data", TORCH_FN(softmax_backward));
  library.impl("_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
}

}  // namespace

}  // namespace ruda_torch
