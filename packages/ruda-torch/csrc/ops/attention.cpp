// Scaled dot product attention: ruda-dnn's kernels (float64 on the host target: ATen's CPU flash
// kernel) behind the overrideable pair of operators. Grouped key and value heads are read in place,
// without copies. What neither takes goes to ATen's math path, which decomposes into operators of
// the list.

#include "host_call.h"
#include "native_attention.h"

#include "../cuda/target.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <cmath>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

bool own_dtype(c10::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// A mask that broadcasts to [B, H, L, S]; ATen's kernel wants two or four dimensions.
bool mask_fits(const Tensor& mask, const Tensor& query, const Tensor& key) {
  const int64_t wanted[4] = {query.size(0), query.size(1), query.size(2), key.size(2)};
  const bool own = own_dtype(query.scalar_type());
  const int64_t rank = mask.dim();
  if (!mask.is_privateuseone() || mask.requires_grad() || rank > 4 ||
      (own ? rank < 1 : rank != 2 && rank != 4)) {
    return false;
  }
  const auto type = mask.scalar_type();
  if (type != at::kBool && type != query.scalar_type() && !(own && type == at::kFloat)) {
    return false;
  }
  for (int64_t i = 1; i <= rank; ++i) {
    if (mask.size(-i) != 1 && mask.size(-i) != wanted[4 - i]) return false;
  }
  return true;
}

// Empty when the fused kernels take the arguments, else what is wrong with them.
const char* misfit(const Tensor& query, const Tensor& key, const Tensor& value,
                   const OptionalTensor& mask, double dropout, bool causal, bool grouped) {
  for (const Tensor* tensor : {&query, &key, &value}) {
    if (!tensor->is_privateuseone()) return "a tensor is not on ruda";
    if (tensor->dim() != 4) return "a tensor has not the four dimensions [batch, heads, length, width]";
    if (tensor->scalar_type() != query.scalar_type()) return "the dtypes differ";
    if (tensor->numel() == 0) return "a tensor is empty";
    if (tensor->is_neg()) return "a tensor is a negative view";
  }
  const auto type = query.scalar_type();
  if (!own_dtype(type) && type != at::kDouble) return "the dtype is not a floating one";
  if (on_cuda()) {
    constexpr int64_t widest = 256;  // of ruda-dnn's device kernels
    if (type == at::kDouble) return "the dtype is float64, on the cuda target";
    if (query.size(3) > widest || value.size(3) > widest) {
      return "a head is wider than 256, on the cuda target";
    }
  }
  if (dropout != 0.0) return "dropout is not 0";
  const int64_t heads = query.size(1), groups = key.size(1);
  if (query.size(0) != key.size(0) || query.size(0) != value.size(0)) return "the batches differ";
  if (groups != value.size(1)) return "key and value have different numbers of heads";
  if (heads != groups && !(grouped && heads % groups == 0)) {
    return "query's heads are no multiple of key's";
  }
  if (query.size(3) != key.size(3)) return "query and key have different widths";
  if (type == at::kDouble && key.size(3) != value.size(3)) {
    return "key and value have different widths (float64)";
  }
  if (key.size(2) != value.size(2)) return "key and value have different lengths";
  if (given(mask)) {
    if (causal) return "there is a mask beside is_causal";
    if (!mask_fits(*mask, query, key)) {
      return "the mask does not broadcast to [batch, heads, query length, key length], is of another "
             "dtype, or wants a gradient";
    }
  }
  return nullptr;
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value,
               const OptionalTensor& mask, double dropout, bool causal, std::optional<double>,
               bool grouped) {
  const at::Context& context = at::globalContext();
  if (context.userEnabledOverrideableSDP() &&
      misfit(query, key, value, mask, dropout, causal, grouped) == nullptr) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "[scaled_dot_product_attention] no enabled backend "
              "takes these arguments on ruda: the fused kernel wants [batch, heads, length, width] "
              "tensors of one floating dtype, no dropout and a mask without gradient; enable SDPBackend.MATH for the rest");
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

Sight sight_of(const Tensor& query, bool causal, std::optional<double> scale) {
  return {scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(3))),
          /*window_left=*/-1, /*window_right=*/causal ? 0 : -1, /*bottom_right=*/false};
}

Attended attention(const Tensor& query, const Tensor& key, const Tensor& value,
                   const OptionalTensor& mask, double dropout, bool causal, bool,
                   std::optional<double> scale) {
  require_ruda("aten::scaled_dot_product_attention",
               {{"query", query}, {"key", key}, {"value", value},
                {"attn_mask", mask.value_or(Tensor())}});
  const char* wrong = misfit(query, key, value, mask, dropout, causal, /*grouped=*/true);
  TORCH_CHECK(wrong == nullptr, "[scaled_dot_product_attention] the fused kernel does not take "
              "these arguments: ", wrong, "; torch.nn.functional.scaled_dot_product_attention "
              "chooses the math path for them. Got query ", query.scalar_type(), query.sizes(),
              ", key ", key.scalar_type(), key.sizes(), ", value ", value.scalar_type(),
              value.sizes(), ", dropout_p ", dropout);
  if (own_dtype(query.scalar_type())) {
    auto [out, logsumexp] = run_attention(query, key, value, mask, std::nullopt, std::nullopt,
                                          sight_of(query, causal, scale), true);
    return attended(std::move(out), std::move(logsumexp), query, key);
  }
  HostCall call("scaled_dot_product_attention", query);
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      with_adjacent_features(call.alias(query)), with_adjacent_features(call.alias(key)),
      with_adjacent_features(call.alias(value)), 0.0, causal, alias_mask(call, mask), scale);
  return attended(call.adopt(std::move(out)), call.adopt(std::move(logsumexp)), query, key);
}

// The sizes and strides of the above. ATen's own for this operator leaves results undefined.
Attended attention_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                        const OptionalTensor&, double, bool, bool, std::optional<double>) {
  if (own_dtype(query.scalar_type())) {
    Tensor out = at::empty_symint({query.sym_size(0), query.sym_size(2), query.sym_size(1),
                                   value.sym_size(3)},
                                  query.options())
                     .transpose(1, 2);
    Tensor logsumexp = at::empty_symint(
        {query.sym_size(0), query.sym_size(1), query.sym_size(2)}, query.options().dtype(at::kFloat));
    return attended(std::move(out), std::move(logsumexp), query, key);
  }
  const bool adjacent = query.sym_stride(-1) == 1 || query.sym_size(-1) == 1;
  Tensor out = at::empty_like(
      query, {}, adjacent ? c10::MemoryFormat::Preserve : c10::MemoryFormat::Contiguous);
  Tensor logsumexp =
      at::empty_symint({query.sym_size(0), query.sym_size(2), query.sym_size(1)}, query.options())
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
  if (own_dtype(query.scalar_type())) {
    auto [dq, dk, dv] = run_attention_backward(
        grad, query, key, value, mask.defined() ? OptionalTensor(mask) : std::nullopt, std::nullopt,
        std::nullopt, out, logsumexp, sight_of(query, causal, scale),
        {wanted[0], wanted[1], wanted[2]});
    return {std::move(dq), std::move(dk), std::move(dv), Tensor()};
  }
  HostCall call("scaled_dot_product_attention_backward", query);
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
