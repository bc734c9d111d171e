// First-order gradients of the native training operators. Backward passes are operators themselves,
// so that modes, profilers and compilers see them; they have no derivative of their own.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

bool needs(const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
bool needs(const OptionalTensor& tensor) { return tensor.has_value() && needs(*tensor); }

// The engine turns gradient mode on for create_graph=True.
void first_order_only(const char* operation) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "[", operation, "] backward got "
                              "create_graph=True, wanted a first-order gradient: gradients of this "
                              "operator's gradients are not built");
}

bool has_tangent(const Tensor& tensor) { return tensor.defined() && tensor._fw_grad(0).defined(); }
bool has_tangent(const OptionalTensor& tensor) {
  return tensor.has_value() && has_tangent(*tensor);
}

// Without this a tangent would be lost in silence, which reads as a derivative of zero.
template <class... Tensors>
void reverse_mode_only(const char* operation, const Tensors&... tensors) {
  TORCH_CHECK_NOT_IMPLEMENTED(!(has_tangent(tensors) || ...), "[", operation, "] got a tensor with "
                              "a tangent (forward-mode differentiation), wanted one without: this "
                              "operator has a reverse-mode gradient only");
}

Tensor value_or_undefined(const OptionalTensor& tensor) { return tensor.value_or(Tensor()); }

OptionalTensor value_or_none(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// ---- rms_norm ----

std::tuple<Tensor, Tensor> call_rms_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                                                    double eps) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const OptionalTensor&, double)>("ruda::rms_norm_with_stats");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, eps);
}

struct RmsNorm : public torch::autograd::Function<RmsNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const OptionalTensor& weight, double eps) {
    auto [y, rstd] = call_rms_norm_with_stats(x, weight, eps);
    context->save_for_backward({x, value_or_undefined(weight), rstd});
    context->mark_non_differentiable({rstd});
    context->set_materialize_grads(false);
    return {y, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("rms_norm");
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const bool weight = saved[1].defined() && context->needs_input_grad(1);
    static const auto op = find<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, std::array<bool, 2>)>(
        "ruda::rms_norm_backward");
    auto [dx, dweight] = op.call(grads[0], saved[0], value_or_none(saved[1]), saved[2],
                                 {context->needs_input_grad(0), weight});
    return {dx, dweight, Tensor()};
  }
};

std::tuple<Tensor, Tensor> rms_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                                               double eps) {
  reverse_mode_only("rms_norm", x, weight);
  if (!at::GradMode::is_enabled() || !(needs(x) || needs(weight))) {
    return call_rms_norm_with_stats(x, weight, eps);
  }
  auto outputs = RmsNorm::apply(x, weight, eps);
  return {outputs[0], outputs[1]};
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, double eps) {
  reverse_mode_only("rms_norm", x, weight);
  if (at::GradMode::is_enabled() && (needs(x) || needs(weight))) {
    return RmsNorm::apply(x, weight, eps)[0];
  }
  static const auto op =
      find<Tensor(const Tensor&, const OptionalTensor&, double)>("ruda::rms_norm");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, eps);
}

// ---- silu_mul ----

Tensor call_silu_mul(const Tensor& gate, const Tensor& up) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("ruda::silu_mul");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(gate, up);
}

struct SiluMul : public torch::autograd::Function<SiluMul> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    Tensor out = call_silu_mul(gate, up);
    context->save_for_backward({gate, up});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("silu_mul");
    const auto saved = context->get_saved_variables();
    static const auto op = find<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, std::array<bool, 2>)>(
        "ruda::silu_mul_backward");
    auto [dgate, dup] = op.call(grads[0], saved[0], saved[1],
                                {context->needs_input_grad(0), context->needs_input_grad(1)});
    return {dgate, dup};
  }
};

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  reverse_mode_only("silu_mul", gate, up);
  if (at::GradMode::is_enabled() && (needs(gate) || needs(up))) return SiluMul::apply(gate, up);
  return call_silu_mul(gate, up);
}

// ---- nf4_linear ----

Tensor call_nf4_linear(const Tensor& x, const Tensor& packed, const Tensor& scales,
                       const Tensor& codebook, const OptionalTensor& bias, int64_t out_features,
                       int64_t in_features, int64_t block_size, int64_t tile_rows) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const OptionalTensor&, int64_t, int64_t, int64_t, int64_t)>("ruda::nf4_linear");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, packed, scales, codebook, bias, out_features, in_features, block_size,
                 tile_rows);
}

struct Nf4Linear : public torch::autograd::Function<Nf4Linear> {
  // The activation itself is not saved: its gradient depends on the frozen weight alone.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& packed,
                        const Tensor& scales, const Tensor& codebook, const OptionalTensor& bias,
                        int64_t out_features, int64_t in_features, int64_t block_size,
                        int64_t tile_rows) {
    Tensor y = call_nf4_linear(x, packed, scales, codebook, bias, out_features, in_features,
                               block_size, tile_rows);
    context->save_for_backward({packed, scales, codebook});
    context->saved_data["out_features"] = out_features;
    context->saved_data["in_features"] = in_features;
    context->saved_data["block_size"] = block_size;
    context->saved_data["tile_rows"] = tile_rows;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("nf4_linear");
    const auto saved = context->get_saved_variables();
    static const auto op =
        find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t,
                    int64_t, int64_t)>("ruda::nf4_linear_input_grad");
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    variable_list result(9);
    result[0] = op.call(grads[0], saved[0], saved[1], saved[2], number("out_features"),
                        number("in_features"), number("block_size"), number("tile_rows"));
    return result;
  }
};

Tensor nf4_linear(const Tensor& x, const Tensor& packed, const Tensor& scales,
                  const Tensor& codebook, const OptionalTensor& bias, int64_t out_features,
                  int64_t in_features, int64_t block_size, int64_t tile_rows) {
  reverse_mode_only("nf4_linear", x, scales, codebook, bias);
  if (at::GradMode::is_enabled()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !needs(scales) && !needs(codebook) && !needs(bias),
        "[nf4_linear] got scales, a codebook or a bias that requires a gradient, wanted frozen "
        "ones: only x has a gradient. Add a trainable bias outside: nf4_linear(x, ...) + bias");
    if (needs(x)) {
      return Nf4Linear::apply(x, packed, scales, codebook, bias, out_features, in_features,
                              block_size, tile_rows);
    }
  }
  return call_nf4_linear(x, packed, scales, codebook, bias, out_features, in_features, block_size,
                         tile_rows);
}

// ---- linear_cross_entropy ----

struct LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
  // The gradients of the sum are computed here, chunk by chunk beside the loss; backward only
  // scales them. Logits are never kept or recomputed.
  static variable_list forward(AutogradContext* context, const Tensor& hidden, const Tensor& head,
                               const OptionalTensor& bias, const Tensor& target,
                               int64_t token_chunk, int64_t ignore_index) {
    static const auto op = find<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
        const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, int64_t, int64_t,
        std::array<bool, 3>)>("ruda::linear_cross_entropy_with_gradients");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, count, dhidden, dhead, dbias] =
        op.call(hidden, head, bias, target, token_chunk, ignore_index,
                {needs(hidden), needs(head), needs(bias)});
    context->save_for_backward({dhidden, dhead, dbias});
    context->saved_data["hidden"] = static_cast<int64_t>(hidden.scalar_type());
    context->saved_data["head"] = static_cast<int64_t>(head.scalar_type());
    context->saved_data["bias"] =
        static_cast<int64_t>(bias.has_value() ? bias->scalar_type() : at::kFloat);
    context->mark_non_differentiable({count});
    context->set_materialize_grads(false);
    return {loss, count};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("linear_cross_entropy");
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    const auto scaled = [&](const Tensor& gradient, const char* name) {
      if (!gradient.defined()) return Tensor();
      const auto dtype = static_cast<at::ScalarType>(context->saved_data[name].toInt());
      return at::mul(gradient, grads[0]).to(dtype);
    };
    result[0] = scaled(saved[0], "hidden");
    result[1] = scaled(saved[1], "head");
    result[2] = scaled(saved[2], "bias");
    return result;
  }
};

std::tuple<Tensor, Tensor> linear_cross_entropy(const Tensor& hidden, const Tensor& head,
                                                const OptionalTensor& bias, const Tensor& target,
                                                int64_t token_chunk, int64_t ignore_index) {
  reverse_mode_only("linear_cross_entropy", hidden, head, bias);
  if (at::GradMode::is_enabled() && (needs(hidden) || needs(head) || needs(bias))) {
    auto outputs =
        LinearCrossEntropy::apply(hidden, head, bias, target, token_chunk, ignore_index);
    return {outputs[0], outputs[1]};
  }
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, int64_t, int64_t)>(
      "ruda::linear_cross_entropy");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(hidden, head, bias, target, token_chunk, ignore_index);
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, Autograd, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm_with_stats", &rms_norm_with_stats);
  m.impl("silu_mul", &silu_mul);
  m.impl("nf4_linear", &nf4_linear);
  m.impl("linear_cross_entropy", &linear_cross_entropy);
  for (const char* name : {"rms_norm_backward", "silu_mul_backward", "nf4_linear_input_grad",
                           "linear_cross_entropy_with_gradients", "adamw_step_",
                           "unscale_gradients_", "gradient_norm"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace ruda_torch
