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

#include <algorithm>
#include <array>
#include <initializer_list>
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

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// Whether somebody asks for the gradient of the tensor behind `before` others. The context numbers
// the tensors that were given, not the arguments: an absent one has no number.
bool wanted(AutogradContext* context, const Tensor& tensor, std::initializer_list<bool> before) {
  if (!tensor.defined()) return false;
  return context->needs_input_grad(
      static_cast<size_t>(std::count(before.begin(), before.end(), true)));
}

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
    static const auto op = find<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, std::array<bool, 2>)>(
        "ruda::rms_norm_backward");
    auto [dx, dweight] =
        op.call(grads[0], saved[0], value_or_none(saved[1]), saved[2],
                {wanted(context, saved[0], {}), wanted(context, saved[1], {true})});
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

// ---- layer_norm ----

using Three = std::tuple<Tensor, Tensor, Tensor>;

Three call_layer_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                                 const OptionalTensor& bias, double eps) {
  static const auto op =
      find<Three(const Tensor&, const OptionalTensor&, const OptionalTensor&, double)>(
          "ruda::layer_norm_with_stats");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, bias, eps);
}

struct LayerNorm : public torch::autograd::Function<LayerNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const OptionalTensor& weight, const OptionalTensor& bias,
                               double eps) {
    auto [y, mean, rstd] = call_layer_norm_with_stats(x, weight, bias, eps);
    context->save_for_backward({x, value_or_undefined(weight), value_or_undefined(bias), mean,
                                rstd});
    context->mark_non_differentiable({mean, rstd});
    context->set_materialize_grads(false);
    return {y, mean, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("layer_norm");
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    static const auto op =
        find<Three(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const OptionalTensor&, const OptionalTensor&, std::array<bool, 3>)>(
            "ruda::layer_norm_backward");
    auto [dx, dweight, dbias] =
        op.call(grads[0], saved[0], saved[3], saved[4], value_or_none(saved[1]),
                value_or_none(saved[2]),
                {wanted(context, saved[0], {}), wanted(context, saved[1], {true}),
                 wanted(context, saved[2], {true, saved[1].defined()})});
    return {dx, dweight, dbias, Tensor()};
  }
};

Three layer_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, double eps) {
  reverse_mode_only("layer_norm", x, weight, bias);
  if (!at::GradMode::is_enabled() || !(needs(x) || needs(weight) || needs(bias))) {
    return call_layer_norm_with_stats(x, weight, bias, eps);
  }
  auto outputs = LayerNorm::apply(x, weight, bias, eps);
  return {outputs[0], outputs[1], outputs[2]};
}

Tensor layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double eps) {
  reverse_mode_only("layer_norm", x, weight, bias);
  if (at::GradMode::is_enabled() && (needs(x) || needs(weight) || needs(bias))) {
    return LayerNorm::apply(x, weight, bias, eps)[0];
  }
  static const auto op =
      find<Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&, double)>(
          "ruda::layer_norm");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, bias, eps);
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

// ---- rotary ----

Tensor call_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("ruda::rotary");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, cos, sin);
}

struct Rotary : public torch::autograd::Function<Rotary> {
  // A linear map: x itself is not saved.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    Tensor y = call_rotary(x, cos, sin);
    context->save_for_backward({cos, sin});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("rotary");
    const auto saved = context->get_saved_variables();
    static const auto op =
        find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("ruda::rotary_backward");
    return {op.call(grads[0], saved[0], saved[1]), Tensor(), Tensor()};
  }
};

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  reverse_mode_only("rotary", x, cos, sin);
  if (at::GradMode::is_enabled()) {
    TORCH_CHECK_NOT_IMPLEMENTED(!needs(cos) && !needs(sin), "[rotary] got cos or sin that requires "
                                "a gradient, wanted constants: only x has a gradient");
    if (needs(x)) return Rotary::apply(x, cos, sin);
  }
  return call_rotary(x, cos, sin);
}

// ---- attention ----

std::tuple<Tensor, Tensor> call_attention_with_stats(
    const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                 const OptionalTensor&, const OptionalTensor&, std::optional<double>, int64_t,
                 int64_t, bool)>("ruda::attention_with_stats");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(query, key, value, mask, ends_q, ends_k, scale, window_left, window_right,
                 bottom_right);
}

struct Attention : public torch::autograd::Function<Attention> {
  static variable_list forward(AutogradContext* context,
                 const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
    auto [out, logsumexp] = call_attention_with_stats(query, key, value, mask, ends_q, ends_k,
                                                      scale, window_left, window_right,
                                                      bottom_right);
    context->save_for_backward({query, key, value, value_or_undefined(mask),
                                value_or_undefined(ends_q), value_or_undefined(ends_k), out,
                                logsumexp});
    context->saved_data["scale"] = scale.has_value() ? c10::IValue(*scale) : c10::IValue();
    context->saved_data["window_left"] = window_left;
    context->saved_data["window_right"] = window_right;
    context->saved_data["bottom_right"] = bottom_right;
    context->mark_non_differentiable({logsumexp});
    context->set_materialize_grads(false);
    return {out, logsumexp};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("attention");
    variable_list result(10);
    if (!grads[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    static const auto op = find<std::tuple<Tensor, Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
        const OptionalTensor&, const OptionalTensor&, const Tensor&, const Tensor&,
        std::optional<double>, int64_t, int64_t, bool, std::array<bool, 3>)>(
        "ruda::attention_backward");
    const c10::IValue& scale = context->saved_data["scale"];
    std::tie(result[0], result[1], result[2]) =
        op.call(grads[0], saved[0], saved[1], saved[2], value_or_none(saved[3]),
                value_or_none(saved[4]), value_or_none(saved[5]), saved[6], saved[7],
                scale.isNone() ? std::nullopt : std::optional<double>(scale.toDouble()),
                context->saved_data["window_left"].toInt(),
                context->saved_data["window_right"].toInt(),
                context->saved_data["bottom_right"].toBool(),
                {context->needs_input_grad(0), context->needs_input_grad(1),
                 context->needs_input_grad(2)});
    return result;
  }
};

std::tuple<Tensor, Tensor> attention_with_stats(
    const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
  reverse_mode_only("attention", query, key, value, mask);
  if (!at::GradMode::is_enabled() || !(needs(query) || needs(key) || needs(value) || needs(mask))) {
    return call_attention_with_stats(query, key, value, mask, ends_q, ends_k, scale, window_left,
                                     window_right, bottom_right);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!needs(mask), "[attention] got a mask that requires a gradient, wanted "
                              "one without: only query, key and value have gradients; "
                              "torch.nn.functional.scaled_dot_product_attention differentiates "
                              "its attn_mask");
  auto outputs = Attention::apply(query, key, value, mask, ends_q, ends_k, scale, window_left,
                                  window_right, bottom_right);
  return {outputs[0], outputs[1]};
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
  if (at::GradMode::is_enabled() && (needs(query) || needs(key) || needs(value) || needs(mask))) {
    return std::get<0>(attention_with_stats(query, key, value, mask, ends_q, ends_k, scale,
                                            window_left, window_right, bottom_right));
  }
  reverse_mode_only("attention", query, key, value, mask);
  static const auto op = find<Tensor(
      const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                 const OptionalTensor&, const OptionalTensor&, std::optional<double>, int64_t,
                 int64_t, bool)>("ruda::attention");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(query, key, value, mask, ends_q, ends_k, scale, window_left, window_right,
                 bottom_right);
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

// ---- nf4_lora_linear ----

struct Nf4LoraLinear : public torch::autograd::Function<Nf4LoraLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& packed,
                        const Tensor& scales, const Tensor& codebook, const OptionalTensor& bias,
                        const Tensor& lora_a, const Tensor& lora_b, double scaling,
                        int64_t out_features, int64_t in_features, int64_t block_size,
                        int64_t tile_rows) {
    static const auto narrow = find<Tensor(const Tensor&, const Tensor&, double)>("ruda::lora_low");
    static const auto wide =
        find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    const OptionalTensor&, const Tensor&, int64_t, int64_t, int64_t, int64_t)>(
            "ruda::nf4_lora_linear_from_low");
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor low = narrow.call(x, lora_a, scaling);
    Tensor y = wide.call(x, low, packed, scales, codebook, bias, lora_b, out_features, in_features,
                         block_size, tile_rows);
    context->save_for_backward({x, low, packed, scales, codebook, lora_a, lora_b});
    context->saved_data["bias"] = given(bias);
    context->saved_data["scaling"] = scaling;
    context->saved_data["out_features"] = out_features;
    context->saved_data["in_features"] = in_features;
    context->saved_data["block_size"] = block_size;
    context->saved_data["tile_rows"] = tile_rows;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    first_order_only("nf4_lora_linear");
    const auto saved = context->get_saved_variables();
    static const auto op = find<std::tuple<Tensor, Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
        const Tensor&, const Tensor&, double, int64_t, int64_t, int64_t, int64_t,
        std::array<bool, 3>)>("ruda::nf4_lora_linear_backward");
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    const bool bias = context->saved_data["bias"].toBool();
    variable_list result(12);
    std::tie(result[0], result[5], result[6]) =
        op.call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
                context->saved_data["scaling"].toDouble(), number("out_features"),
                number("in_features"), number("block_size"), number("tile_rows"),
                {wanted(context, saved[0], {}),
                 wanted(context, saved[5], {true, true, true, true, bias}),
                 wanted(context, saved[6], {true, true, true, true, bias, true})});
    return result;
  }
};

Tensor nf4_lora_linear(const Tensor& x, const Tensor& packed, const Tensor& scales,
                       const Tensor& codebook, const OptionalTensor& bias, const Tensor& lora_a,
                       const Tensor& lora_b, double scaling, int64_t out_features,
                       int64_t in_features, int64_t block_size, int64_t tile_rows) {
  reverse_mode_only("nf4_lora_linear", x, scales, codebook, bias, lora_a, lora_b);
  if (at::GradMode::is_enabled()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !needs(scales) && !needs(codebook) && !needs(bias),
        "[nf4_lora_linear] got scales, a codebook or a bias that requires a gradient, wanted "
        "frozen ones: x, lora_a and lora_b have gradients. Add a trainable bias outside");
    if (needs(x) || needs(lora_a) || needs(lora_b)) {
      return Nf4LoraLinear::apply(x, packed, scales, codebook, bias, lora_a, lora_b, scaling,
                                  out_features, in_features, block_size, tile_rows);
    }
  }
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const OptionalTensor&, const Tensor&, const Tensor&, double, int64_t, int64_t,
                  int64_t, int64_t)>("ruda::nf4_lora_linear");
  at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, packed, scales, codebook, bias, lora_a, lora_b, scaling, out_features,
                 in_features, block_size, tile_rows);
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
        static_cast<int64_t>(given(bias) ? bias->scalar_type() : at::kFloat);
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
  m.impl("attention", &attention);
  m.impl("attention_with_stats", &attention_with_stats);
  m.impl("attention_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm_with_stats", &rms_norm_with_stats);
  m.impl("layer_norm", &layer_norm);
  m.impl("layer_norm_with_stats", &layer_norm_with_stats);
  m.impl("silu_mul", &silu_mul);
  m.impl("rotary", &rotary);
  m.impl("nf4_linear", &nf4_linear);
  m.impl("nf4_lora_linear", &nf4_lora_linear);
  m.impl("linear_cross_entropy", &linear_cross_entropy);
  for (const char* name : {"rms_norm_backward", "layer_norm_backward", "silu_mul_backward",
                           "rotary_backward",
                           "nf4_linear_input_grad", "lora_low",
                           "nf4_lora_linear_from_low", "nf4_lora_linear_backward",
                           "linear_cross_entropy_with_gradients", "adamw_step_",
                           "unscale_gradients_", "gradient_norm"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace ruda_torch
