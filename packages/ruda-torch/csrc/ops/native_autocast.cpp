// Autocast rules of the native training operators on ruda.
//
//   rms_norm              x keeps its dtype (the arithmetic is float32 whatever the storage); a
//                         weight of another 16-bit dtype becomes float32
//   layer_norm            as rms_norm, weight and bias alike
//   silu_mul              both operands in the wider of their dtypes
//   rotary                x keeps its dtype; tables of another 16-bit dtype become float32
//   nf4_linear            x and bias in autocast's dtype, like linear
//   nf4_lora_linear       x and bias in autocast's dtype; the adapter keeps its own
//   attention             query, key and value in autocast's dtype, like ATen's own
//   linear_cross_entropy  hidden, head and bias in autocast's dtype, like linear; the loss is float32

#include "../runtime.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

struct BelowAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1)};
};

template <class T>
T lowered(const T& tensor) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(kRuda), tensor, kRuda);
}

OptionalTensor matching_weight(const Tensor& x, const OptionalTensor& weight) {
  if (!weight.has_value() || !weight->defined() || weight->scalar_type() == x.scalar_type()) {
    return weight;
  }
  return at::autocast::cached_cast(at::kFloat, weight, kRuda);
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, double eps) {
  static const auto op =
      find<Tensor(const Tensor&, const OptionalTensor&, double)>("ruda::rms_norm");
  const BelowAutocast below;
  return op.call(x, matching_weight(x, weight), eps);
}

std::tuple<Tensor, Tensor> rms_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                                               double eps) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const OptionalTensor&, double)>("ruda::rms_norm_with_stats");
  const BelowAutocast below;
  return op.call(x, matching_weight(x, weight), eps);
}

Tensor layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double eps) {
  static const auto op =
      find<Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&, double)>(
          "ruda::layer_norm");
  const BelowAutocast below;
  return op.call(x, matching_weight(x, weight), matching_weight(x, bias), eps);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_with_stats(const Tensor& x,
                                                         const OptionalTensor& weight,
                                                         const OptionalTensor& bias, double eps) {
  static const auto op =
      find<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const OptionalTensor&,
                                              const OptionalTensor&, double)>(
          "ruda::layer_norm_with_stats");
  const BelowAutocast below;
  return op.call(x, matching_weight(x, weight), matching_weight(x, bias), eps);
}

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&)>("ruda::silu_mul");
  const BelowAutocast below;
  const auto wider = c10::promoteTypes(gate.scalar_type(), up.scalar_type());
  return op.call(at::autocast::cached_cast(wider, gate, kRuda),
                 at::autocast::cached_cast(wider, up, kRuda));
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("ruda::rotary");
  const BelowAutocast below;
  // Both tables in x's dtype, or both in float32.
  const auto table = [&](const Tensor& tensor) {
    const bool same = cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type();
    return same ? tensor : at::autocast::cached_cast(at::kFloat, tensor, kRuda);
  };
  return op.call(x, table(cos), table(sin));
}

Tensor nf4_linear(const Tensor& x, const Tensor& packed, const Tensor& scales,
                  const Tensor& codebook, const OptionalTensor& bias, int64_t out_features,
                  int64_t in_features, int64_t block_size, int64_t tile_rows) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const OptionalTensor&, int64_t, int64_t, int64_t, int64_t)>("ruda::nf4_linear");
  const BelowAutocast below;
  return op.call(lowered(x), packed, scales, codebook, lowered(bias), out_features, in_features,
                 block_size, tile_rows);
}

Tensor nf4_lora_linear(const Tensor& x, const Tensor& packed, const Tensor& scales,
                       const Tensor& codebook, const OptionalTensor& bias, const Tensor& lora_a,
                       const Tensor& lora_b, double scaling, int64_t out_features,
                       int64_t in_features, int64_t block_size, int64_t tile_rows) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const OptionalTensor&, const Tensor&, const Tensor&, double, int64_t, int64_t,
                  int64_t, int64_t)>("ruda::nf4_lora_linear");
  const BelowAutocast below;
  return op.call(lowered(x), packed, scales, codebook, lowered(bias), lora_a, lora_b, scaling,
                 out_features, in_features, block_size, tile_rows);
}

std::tuple<Tensor, Tensor> linear_cross_entropy(const Tensor& hidden, const Tensor& head,
                                                const OptionalTensor& bias, const Tensor& target,
                                                int64_t token_chunk, int64_t ignore_index) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, int64_t, int64_t)>(
      "ruda::linear_cross_entropy");
  const BelowAutocast below;
  return op.call(lowered(hidden), lowered(head), lowered(bias), target, token_chunk,
                 ignore_index);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
  static const auto op = find<Tensor(
      const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                 const OptionalTensor&, const OptionalTensor&, std::optional<double>, int64_t,
                 int64_t, bool)>("ruda::attention");
  const BelowAutocast below;
  return op.call(lowered(query), lowered(key), lowered(value), mask, ends_q, ends_k, scale,
                 window_left, window_right, bottom_right);
}

std::tuple<Tensor, Tensor> attention_with_stats(
    const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                 const OptionalTensor&, const OptionalTensor&, std::optional<double>, int64_t,
                 int64_t, bool)>("ruda::attention_with_stats");
  const BelowAutocast below;
  return op.call(lowered(query), lowered(key), lowered(value), mask, ends_q, ends_k, scale,
                 window_left, window_right, bottom_right);
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, AutocastPrivateUse1, m) {
  m.impl("attention", &attention);
  m.impl("attention_with_stats", &attention_with_stats);
  m.impl("attention_backward", torch::CppFunction::makeFallthrough());
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
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace ruda_torch
