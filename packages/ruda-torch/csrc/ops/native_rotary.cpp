// ruda::rotary and its backward on ruda, and their shapes on meta.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ruda/dnn.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Tensor;

// The kernel reads heads in place, wherever they lie, as long as a head's features are adjacent.
Tensor with_adjacent_features(const Tensor& tensor) {
  return tensor.dim() == 4 && tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

Tensor run(const Kernel& kernel, const char* operation, const char* name, const Tensor& x,
           const Tensor& cos, const Tensor& sin) {
  const Tensor input = with_adjacent_features(x);
  const Tensor cosine = cos.contiguous();
  const Tensor sine = sin.contiguous();
  Tensor y = at::empty(x.sizes(), x.options());
  Views views(operation);
  const ruda::rotary_args args{views(input, name), views(cosine, "cos"), views(sine, "sin"),
                               views(y, "y")};
  kernel.launch(&args);
  return y;
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  static const Kernel kernel("rotary.forward", ruda::rotary_args_layout);
  return run(kernel, "rotary", "x", x, cos, sin);
}

Tensor rotary_backward(const Tensor& grad, const Tensor& cos, const Tensor& sin) {
  static const Kernel kernel("rotary.backward", ruda::rotary_args_layout);
  return run(kernel, "rotary_backward", "grad", grad, cos, sin);
}

Tensor rotary_meta(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  TORCH_CHECK_VALUE(x.dim() == 4, "[rotary] x: got shape ", x.sym_sizes(),
                    ", wanted [B, T, H, D]");
  TORCH_CHECK_VALUE(cos.dim() == 3 && cos.sym_size(1) == x.sym_size(1), "[rotary] cos: got shape ",
                    cos.sym_sizes(), ", wanted [B or 1, ", x.sym_size(1), ", R]");
  TORCH_CHECK_VALUE(sin.sym_sizes() == cos.sym_sizes(), "[rotary] sin: got shape ",
                    sin.sym_sizes(), ", wanted cos's shape ", cos.sym_sizes());
  return at::empty_symint(x.sym_sizes(), x.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("rotary", &rotary);
  m.impl("rotary_backward", &rotary_backward);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("rotary", &rotary_meta);
  m.impl("rotary_backward", &rotary_meta);
}

}  // namespace ruda_torch
