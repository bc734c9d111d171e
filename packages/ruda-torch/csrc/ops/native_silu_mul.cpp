// ruda::silu_mul and its backward on ruda, and their shapes on meta.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ruda/dnn.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;

Tensor empty_contiguous_like(const Tensor& tensor) {
  return at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  static const Kernel kernel("silu_mul.forward", ruda::silu_mul_forward_args_layout);
  const Tensor left = gate.contiguous();
  const Tensor right = up.contiguous();
  Tensor out = empty_contiguous_like(left);
  Views views("silu_mul");
  const ruda::silu_mul_forward_args args{views(left, "gate"), views(right, "up"),
                                         views(out, "out")};
  kernel.launch(&args);
  return out;
}

std::tuple<Tensor, Tensor> silu_mul_backward(const Tensor& grad, const Tensor& gate,
                                             const Tensor& up, std::array<bool, 2> mask) {
  static const Kernel kernel("silu_mul.backward", ruda::silu_mul_backward_args_layout);
  const Tensor left = gate.contiguous();
  const Tensor right = up.contiguous();
  const Tensor upper = grad.contiguous();
  const Tensor dgate = mask[0] ? empty_contiguous_like(left) : Tensor();
  const Tensor dup = mask[1] ? empty_contiguous_like(right) : Tensor();
  Views views("silu_mul_backward");
  const ruda::silu_mul_backward_args args{views(left, "gate"), views(right, "up"),
                                          views(upper, "grad"), views.optional(dgate, "dgate"),
                                          views.optional(dup, "dup")};
  kernel.launch(&args);
  return {dgate, dup};
}

Tensor silu_mul_meta(const Tensor& gate, const Tensor& up) {
  TORCH_CHECK_VALUE(gate.sym_sizes() == up.sym_sizes(), "[silu_mul] up: got shape ",
                    up.sym_sizes(), ", wanted gate's shape ", gate.sym_sizes());
  TORCH_CHECK_TYPE(gate.scalar_type() == up.scalar_type(), "[silu_mul] up: got dtype ",
                   up.scalar_type(), ", wanted gate's dtype ", gate.scalar_type());
  return empty_contiguous_like(gate);
}

std::tuple<Tensor, Tensor> silu_mul_backward_meta(const Tensor& grad, const Tensor& gate,
                                                  const Tensor& up, std::array<bool, 2> mask) {
  return {mask[0] ? empty_contiguous_like(gate) : Tensor(),
          mask[1] ? empty_contiguous_like(up) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("silu_mul", &silu_mul);
  m.impl("silu_mul_backward", &silu_mul_backward);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("silu_mul", &silu_mul_meta);
  m.impl("silu_mul_backward", &silu_mul_backward_meta);
}

}  // namespace ruda_torch
