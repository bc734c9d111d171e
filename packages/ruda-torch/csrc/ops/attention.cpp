// Scaled dot product attention: ATen's CPU flash kernel behind the overrideable pair of operators.
// Grouped key and value heads are read in place, without copies. What the kernel does not take goes
// to ATen's math path, which decomposes into operators of the list.

#include "host_call.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

bool flash_dtype(c10::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

// A mask of [L, S] or [B or 1, H or 1, L or 1, S or 1].
bool mask_fits(const Tensor& mask, const Tensor& query, const Tensor& key) {
  const int64_t wanted[4] = {query.size(0), query.size(1), query.size(2), key.size(2)};
  if (!mask.is_privateuseone() || mask.requires_grad() || (mask.dim() != 2 && mask.dim() != 4)) {
    return false;
  }
  if (mask.scalar_type() != at::kBool && mask.scalar_type() != query.scalar_type()) return false;
  for (int64_t i = 1; i <= mask.dim(); ++i) {
    if (mask.size(-i) != 1 && mask.size(-i) != wanted[4 - i]) return false;
  }
  return true;
}

bool flash_fits(const Tensor& query, const Tensor& key, const Tensor& value,
                const OptionalTensor& mask, double dropout, bool causal, bool grouped) {
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (!tensor->is_privateuseone() || tensor->dim() != 4 || tensor->is_neg() ||
        tensor->scalar_type() != query.scalar_type() || tensor->numel() == 0) {
      return false;
    }
  }
  const int64_t heads = query.size(1);
  const int64_t groups = key.size(1);
  return flash_dtype(query.scalar_type()) && dropout == 0.0 && query.size(0) == key.size(0) &&
         query.size(0) == value.size(0) && groups == value.size(1) &&
         (heads == groups || (grouped && heads % groups == 0)) && query.size(3) == key.size(3) &&
         key.size(3) == value.size(3) && key.size(2) == value.size(2) &&
         (!given(mask) || (!causal && mask_fits(*mask, query, key)));
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value,
               const OptionalTensor& mask, double dropout, bool causal, std::optional<double>,
               bool grouped) {
  const at::Context& context = at::globalContext();
  if (context.userEnabledOverrideableSDP() &&
      flash_fits(query, key, value, mask, dropout, causal, grouped)) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "[scaled_dot_product_attention] no enabled backend "
              "takes these arguments on ruda: the fused kernel wants [batch, heads, length, width] "
              "tensors of one floating dtype, equal widths, no dropout and a mask without "
              "gradient; enable SDPBackend.MATH for the rest");
  return static_cast<int64_t>(at::SDPBackend::math);
}

// The kernel wants adjacent features.
Tensor with_adjacent_features(const Tensor& tensor) {
  return tensor.stride(-1) == 1 || tensor.size(-1) == 1 ? tensor : tensor.contiguous();
}

OptionalTensor alias_mask(HostCall& call, const OptionalTensor& mask) {
  return given(mask) ? OptionalTensor(call.alias(*mask)) : std::nullopt;
}

using Attended =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// The results that this kernel has no use for, as tensors without elements: a captured graph cannot
// save an undefined one.
Attended attended(Tensor out, Tensor logsumexp, const Tensor& query, const Tensor& key) {
  const auto none = [&query](c10::ScalarType type) {
    return at::empty({0}, query.options().dtype(type));
  };
  return {std::move(out), std::move(logsumexp), none(at::kInt), none(at::kInt),
          query.sym_size(2), key.sym_size(2), none(at::kLong), none(at::kLong),
          none(query.scalar_type())};
}

Attended attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
          double dropout, bool causal, bool, std::optional<double> scale) {
  require_ruda("aten::scaled_dot_product_attention",
               {{"query", query}, {"key", key}, {"value", value},
                {"attn_mask", mask.value_or(Tensor())}});
  TORCH_CHECK(dropout == 0.0, "[scaled_dot_product_attention] the fused kernel takes no dropout: "
              "got dropout_p=", dropout, "; torch.nn.functional.scaled_dot_product_attention "
              "chooses the math path for it");
  HostCall call;
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      with_adjacent_features(call.alias(query)), with_adjacent_features(call.alias(key)),
      with_adjacent_features(call.alias(value)), 0.0, causal, alias_mask(call, mask), scale);
  return attended(call.adopt(std::move(out)), call.adopt(std::move(logsumexp)), query, key);
}

// The sizes and strides of the above. ATen's own for this operator leaves results undefined.
Attended attention_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                        const OptionalTensor&, double, bool, bool, std::optional<double>) {
  const bool adjacent = query.sym_stride(-1) == 1 || query.sym_size(-1) == 1;
  Tensor out = at::empty_like(
      query, {}, adjacent ? c10::MemoryFormat::Preserve : c10::MemoryFormat::Contiguous);
  const auto type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor logsumexp =
      at::empty_symint({query.sym_size(0), query.sym_size(2), query.sym_size(1)},
                       query.options().dtype(type))
          .transpose(1, 2);
  return attended(std::move(out), std::move(logsumexp), query, key);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& mask, std::array<bool, 4> wanted, const Tensor& out, const Tensor& logsumexp,
    const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double, bool causal, const Tensor&,
    const Tensor&, std::optional<double> scale) {
  if (!grad.defined()) return {};
  require_ruda("aten::scaled_dot_product_attention_backward",
               {{"grad", grad}, {"query", query}, {"key", key}, {"value", value}, {"mask", mask},
                {"out", out}, {"logsumexp", logsumexp}});
  TORCH_CHECK_NOT_IMPLEMENTED(!mask.defined() || !wanted[3],
                              "[scaled_dot_product_attention] the fused kernel has no gradient for "
                              "attn_mask; the math path has one");
  HostCall call;
  auto [grad_query, grad_key, grad_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          with_adjacent_features(call.alias(grad)), with_adjacent_features(call.alias(query)),
          with_adjacent_features(call.alias(key)), with_adjacent_features(call.alias(value)),
          call.alias(out), call.alias(logsumexp), 0.0, causal,
          mask.defined() ? OptionalTensor(call.alias(mask)) : std::nullopt, scale);
  return {call.adopt(std::move(grad_query)), call.adopt(std::move(grad_key)),
          call.adopt(std::move(grad_value)), Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_fused_sdp_choice", TORCH_FN(choose));
  library.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward",
               TORCH_FN(attention_backward));
}

// Only one device of another maker can be in a process, so that this replaces nobody else's.
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention_meta));
}

}  // namespace

}  // namespace ruda_torch

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &ruda_torch::choose)
}  // namespace at::native
