// Fused LSTM and GRU cells, which nn.LSTM, nn.GRU and their cells call on an accelerator and which
// ATen has no CPU kernels for. H is the hidden size; gates lie side by side in the last dimension.

#include "host_call.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

Tensor or_undefined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return given(bias) ? gates + *bias : gates;
}

// Gates: input, forget, cell, output. The workspace [B, 4H] keeps them after their activations.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  require_ruda("aten::_thnn_fused_lstm_cell",
               {{"input_gates", input_gates}, {"hidden_gates", hidden_gates}, {"cx", cx},
                {"input_bias", or_undefined(input_bias)},
                {"hidden_bias", or_undefined(hidden_bias)}});
  HostCall call("aten::_thnn_fused_lstm_cell", input_gates);
  Tensor workspace = with_bias(call.alias(input_gates), call.alias(input_bias)) +
                     with_bias(call.alias(hidden_gates), call.alias(hidden_bias));
  const auto gates = workspace.unsafe_chunk(4, 1);
  gates[0].sigmoid_();
  gates[1].sigmoid_();
  gates[2].tanh_();
  gates[3].sigmoid_();
  Tensor cy = gates[1] * call.alias(cx) + gates[0] * gates[2];
  Tensor hy = gates[3] * cy.tanh();
  return {call.adopt(std::move(hy)), call.adopt(std::move(cy)), call.adopt(std::move(workspace))};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) return {};
  require_ruda("aten::_thnn_fused_lstm_cell_backward_impl",
               {{"grad_hy", or_undefined(grad_hy)}, {"grad_cy", or_undefined(grad_cy)},
                {"cx", cx}, {"cy", cy}, {"workspace", workspace}});
  HostCall call("aten::_thnn_fused_lstm_cell_backward_impl", workspace);
  const auto gates = call.alias(workspace).unsafe_chunk(4, 1);
  const Tensor squashed = call.alias(cy).tanh();
  Tensor grad_cell = given(grad_cy) ? call.alias(*grad_cy) : Tensor();
  Tensor grad_output = at::zeros_like(squashed);
  if (given(grad_hy)) {
    const Tensor grad = call.alias(*grad_hy);
    grad_output = grad * squashed;
    const Tensor through = grad * gates[3] * (1 - squashed * squashed);
    grad_cell = grad_cell.defined() ? grad_cell + through : through;
  }
  const auto sigmoid_backward = [](const Tensor& grad, const Tensor& value) {
    return grad * value * (1 - value);
  };
  Tensor grad_gates = at::cat({sigmoid_backward(grad_cell * gates[2], gates[0]),
                               sigmoid_backward(grad_cell * call.alias(cx), gates[1]),
                               grad_cell * gates[0] * (1 - gates[2] * gates[2]),
                               sigmoid_backward(grad_output, gates[3])},
                              1);
  Tensor grad_cx = grad_cell * gates[1];
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {call.adopt(std::move(grad_gates)), call.adopt(std::move(grad_cx)),
          call.adopt(std::move(grad_bias))};
}

// Gates: reset, update, new. The workspace [B, 5H] keeps them after their activations, then the old
// state and the hidden part of the new gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  require_ruda("aten::_thnn_fused_gru_cell",
               {{"input_gates", input_gates}, {"hidden_gates", hidden_gates}, {"hx", hx},
                {"input_bias", or_undefined(input_bias)},
                {"hidden_bias", or_undefined(hidden_bias)}});
  HostCall call("aten::_thnn_fused_gru_cell", input_gates);
  const auto input =
      with_bias(call.alias(input_gates), call.alias(input_bias)).unsafe_chunk(3, 1);
  const auto hidden =
      with_bias(call.alias(hidden_gates), call.alias(hidden_bias)).unsafe_chunk(3, 1);
  const Tensor state = call.alias(hx);
  const Tensor reset = (input[0] + hidden[0]).sigmoid_();
  const Tensor update = (input[1] + hidden[1]).sigmoid_();
  const Tensor fresh = (input[2] + reset * hidden[2]).tanh_();
  Tensor hy = (state - fresh) * update + fresh;
  Tensor workspace = at::cat({reset, update, fresh, state, hidden[2]}, 1);
  return {call.adopt(std::move(hy)), call.adopt(std::move(workspace))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  require_ruda("aten::_thnn_fused_gru_cell_backward",
               {{"grad_hy", grad_hy}, {"workspace", workspace}});
  HostCall call("aten::_thnn_fused_gru_cell_backward", workspace);
  const auto saved = call.alias(workspace).unsafe_chunk(5, 1);
  const Tensor& reset = saved[0];
  const Tensor& update = saved[1];
  const Tensor& fresh = saved[2];
  const Tensor grad = call.alias(grad_hy);
  Tensor grad_hx = grad * update;
  const Tensor grad_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_update = grad * (saved[3] - fresh) * update * (1 - update);
  const Tensor grad_reset = grad_fresh * saved[4] * reset * (1 - reset);
  Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  Tensor grad_input_bias = has_bias ? grad_input.sum(0) : Tensor();
  Tensor grad_hidden_bias = has_bias ? grad_hidden.sum(0) : Tensor();
  return {call.adopt(std::move(grad_input)), call.adopt(std::move(grad_hidden)),
          call.adopt(std::move(grad_hx)), call.adopt(std::move(grad_input_bias)),
          call.adopt(std::move(grad_hidden_bias))};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  library.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace

}  // namespace ruda_torch
