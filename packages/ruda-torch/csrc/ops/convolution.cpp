// Convolutions. ATen routes every convolution of a PrivateUse1 device to the overrideable pair,
// which has no kernel of its own for CPU: both call ATen's ordinary convolution on aliases.

#include "host_call.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using c10::SymIntArrayRef;

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, SymIntArrayRef stride,
                       SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                       SymIntArrayRef output_padding, c10::SymInt groups) {
  require_ruda("aten::convolution", {{"input", input}, {"weight", weight},
                                     {"bias", bias.value_or(at::Tensor())}});
  HostCall call("aten::convolution", input);
  return call.adopt(at::convolution_symint(call.alias(input), call.alias(weight), call.alias(bias),
                                           stride, padding, dilation, transposed, output_padding,
                                           groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
    SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted) {
  require_ruda("aten::convolution_backward",
               {{"grad_output", grad}, {"input", input}, {"weight", weight}});
  HostCall call("aten::convolution_backward", input);
  const std::vector<c10::SymInt> bias_sizes{
      transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward_symint(
      call.alias(grad), call.alias(input), call.alias(weight), bias_sizes, stride, padding,
      dilation, transposed, output_padding, groups, wanted);
  return {call.adopt(std::move(grad_input)), call.adopt(std::move(grad_weight)),
          call.adopt(std::move(grad_bias))};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", TORCH_FN(convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace

}  // namespace ruda_torch
