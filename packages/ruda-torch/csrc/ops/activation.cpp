// Backwards of SiLU and Mish. Both have a composite-implicit kernel, so that they are in no list;
// without these registrations a backward pass would decompose them into five operators. Autograd
// knows both by formula, so a kernel here does not lose their own derivative.

#include "host_call.h"
#include "stub_route.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/mish_backward_native.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/silu_backward_native.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Tensor;

Tensor silu_backward(const Tensor& grad, const Tensor& self) {
  if (on_cuda()) return stub::make<at::native::structured_silu_backward_out>(grad, self);
  require_ruda("aten::silu_backward", {{"grad_output", grad}, {"self", self}});
  HostCall call("aten::silu_backward", self);
  return call.adopt(at::silu_backward(call.alias(grad), call.alias(self)));
}

Tensor mish_backward(const Tensor& grad, const Tensor& self) {
  if (on_cuda()) return at::native::mish_backward(grad, self);
  require_ruda("aten::mish_backward", {{"grad_output", grad}, {"self", self}});
  HostCall call("aten::mish_backward", self);
  return call.adopt(at::mish_backward(call.alias(grad), call.alias(self)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("silu_backward", TORCH_FN(silu_backward));
  library.impl("mish_backward", TORCH_FN(mish_backward));
}

}  // namespace

}  // namespace ruda_torch
