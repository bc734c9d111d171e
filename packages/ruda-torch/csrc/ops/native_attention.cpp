// ruda::attention and its backward on ruda, and their shapes on meta.

#include "native_attention.h"

#include "native_launch.h"

#include <ATen/ops/empty.h>
#include <ruda/dnn.h>
#include <torch/library.h>

#include <cmath>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// Kernels see [B, T, H, D]; a last axis that is not adjacent is copied.
Tensor rows_first(const Tensor& tensor) {
  const Tensor adjacent =
      tensor.stride(-1) == 1 || tensor.size(-1) == 1 ? tensor : tensor.contiguous();
  return tensor.dim() == 4 ? adjacent.transpose(1, 2) : adjacent;
}

void check_rank(const Tensor& tensor, bool packed, const char* operation, const char* name) {
  TORCH_CHECK_VALUE(tensor.dim() == (packed ? 3 : 4), "[", operation, "] ", name, ": got shape ",
                    tensor.sym_sizes(), ", wanted ",
                    packed ? "[total, heads, width]" : "[batch, heads, length, width]");
}

void check_ranks(const Tensor& query, const Tensor& key, const Tensor& value, bool packed,
                 const char* operation) {
  check_rank(query, packed, operation, "query");
  check_rank(key, packed, operation, "key");
  check_rank(value, packed, operation, "value");
}

// As a view of [B or 1, H or 1, Tq or 1, Tk]: leading axes may be missing, the last may be 1.
OptionalTensor full_mask(const OptionalTensor& mask, const Tensor& key) {
  if (!given(mask)) return std::nullopt;
  Tensor view = *mask;
  TORCH_CHECK_VALUE(view.dim() >= 1 && view.dim() <= 4, "[attention] mask: got shape ",
                    view.sizes(), ", wanted one that broadcasts to [batch, heads, Tq, Tk]");
  while (view.dim() < 4) view = view.unsqueeze(0);
  if (view.size(3) == 1 && key.size(2) != 1) {
    view = view.expand({view.size(0), view.size(1), view.size(2), key.size(2)});
  }
  return view;
}

// Heads and rows of [B, H, T, D] swapped in memory.
Tensor empty_rows_first(c10::SymIntArrayRef sizes, const Tensor& like) {
  if (sizes.size() == 3) return at::empty_symint(sizes, like.options());
  return at::empty_symint({sizes[0], sizes[2], sizes[1], sizes[3]}, like.options())
      .transpose(1, 2);
}

std::vector<c10::SymInt> out_sizes(const Tensor& query, const Tensor& value) {
  std::vector<c10::SymInt> sizes = query.sym_sizes().vec();
  sizes.back() = value.sym_size(-1);
  return sizes;
}

Tensor empty_logsumexp(const Tensor& query) {
  const auto options = query.options().dtype(at::kFloat);
  if (query.dim() == 3) {
    return at::empty_symint({query.sym_size(1), query.sym_size(0)}, options);
  }
  return at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2)}, options);
}

Sight sight_of(const Tensor& query, std::optional<double> scale, int64_t window_left,
               int64_t window_right, bool bottom_right) {
  return {scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(-1))),
          window_left, window_right, bottom_right};
}

}  // namespace

std::tuple<Tensor, Tensor> run_attention(const Tensor& query, const Tensor& key,
                                         const Tensor& value, const OptionalTensor& mask,
                                         const OptionalTensor& ends_q, const OptionalTensor& ends_k,
                                         const Sight& sight, bool with_stats) {
  static const Kernel kernel("attention.forward", ruda::attention_forward_args_layout);
  check_ranks(query, key, value, given(ends_q), "attention");
  const Tensor q = rows_first(query), k = rows_first(key), v = rows_first(value);
  const OptionalTensor seen = full_mask(mask, key);
  const OptionalTensor first = contiguous(ends_q), second = contiguous(ends_k);
  Tensor out = empty_rows_first(out_sizes(query, value), query);
  const Tensor rows = rows_first(out);
  Tensor logsumexp = with_stats ? empty_logsumexp(query) : Tensor();
  Views views("attention");
  const ruda::attention_forward_args args{views(q, "query"),
                                          views(k, "key"),
                                          views(v, "value"),
                                          views.optional(seen, "mask"),
                                          views.optional(first, "cu_seqlens_q"),
                                          views.optional(second, "cu_seqlens_k"),
                                          views(rows, "out"),
                                          views.optional(logsumexp, "logsumexp"),
                                          sight.scale,
                                          sight.window_left,
                                          sight.window_right,
                                          sight.bottom_right ? 1 : 0};
  kernel.launch(&args);
  return {std::move(out), std::move(logsumexp)};
}

std::tuple<Tensor, Tensor, Tensor> run_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& mask, const OptionalTensor& ends_q, const OptionalTensor& ends_k,
    const Tensor& out, const Tensor& logsumexp, const Sight& sight, std::array<bool, 3> wanted) {
  static const Kernel kernel("attention.backward", ruda::attention_backward_args_layout);
  const char* operation = "attention_backward";
  check_ranks(query, key, value, given(ends_q), operation);
  check_rank(grad, given(ends_q), operation, "grad");
  check_rank(out, given(ends_q), operation, "out");
  const Tensor q = rows_first(query), k = rows_first(key), v = rows_first(value);
  const Tensor upper = rows_first(grad), result = rows_first(out);
  const OptionalTensor seen = full_mask(mask, key);
  const OptionalTensor first = contiguous(ends_q), second = contiguous(ends_k);
  std::array<Tensor, 3> gradients, rows;
  const Tensor* inputs[3] = {&query, &key, &value};
  for (size_t i = 0; i < 3; ++i) {
    if (!wanted[i]) continue;
    gradients[i] = empty_rows_first(inputs[i]->sym_sizes(), *inputs[i]);
    rows[i] = rows_first(gradients[i]);
  }
  Views views(operation);
  const ruda::attention_backward_args args{views(q, "query"),
                                           views(k, "key"),
                                           views(v, "value"),
                                           views.optional(seen, "mask"),
                                           views.optional(first, "cu_seqlens_q"),
                                           views.optional(second, "cu_seqlens_k"),
                                           views(result, "out"),
                                           views(logsumexp, "logsumexp"),
                                           views(upper, "grad"),
                                           views.optional(rows[0], "dq"),
                                           views.optional(rows[1], "dk"),
                                           views.optional(rows[2], "dv"),
                                           sight.scale,
                                           sight.window_left,
                                           sight.window_right,
                                           sight.bottom_right ? 1 : 0};
  kernel.launch(&args);
  return {gradients[0], gradients[1], gradients[2]};
}

namespace {

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& mask, const OptionalTensor& ends_q,
                 const OptionalTensor& ends_k, std::optional<double> scale, int64_t window_left,
                 int64_t window_right, bool bottom_right) {
  check_ranks(query, key, value, given(ends_q), "attention");
  return std::get<0>(
      run_attention(query, key, value, mask, ends_q, ends_k,
                    sight_of(query, scale, window_left, window_right, bottom_right), false));
}

std::tuple<Tensor, Tensor> attention_with_stats(const Tensor& query, const Tensor& key,
                                                const Tensor& value, const OptionalTensor& mask,
                                                const OptionalTensor& ends_q,
                                                const OptionalTensor& ends_k,
                                                std::optional<double> scale, int64_t window_left,
                                                int64_t window_right, bool bottom_right) {
  check_ranks(query, key, value, given(ends_q), "attention");
  return run_attention(query, key, value, mask, ends_q, ends_k,
                       sight_of(query, scale, window_left, window_right, bottom_right), true);
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor& mask, const OptionalTensor& ends_q, const OptionalTensor& ends_k,
    const Tensor& out, const Tensor& logsumexp, std::optional<double> scale, int64_t window_left,
    int64_t window_right, bool bottom_right, std::array<bool, 3> wanted) {
  check_ranks(query, key, value, given(ends_q), "attention_backward");
  return run_attention_backward(grad, query, key, value, mask, ends_q, ends_k, out, logsumexp,
                                sight_of(query, scale, window_left, window_right, bottom_right),
                                wanted);
}

// ---- meta ----

Tensor attention_meta(const Tensor& query, const Tensor& key, const Tensor& value,
                      const OptionalTensor&, const OptionalTensor& ends_q, const OptionalTensor&,
                      std::optional<double>, int64_t, int64_t, bool) {
  check_ranks(query, key, value, given(ends_q), "attention");
  return empty_rows_first(out_sizes(query, value), query);
}

std::tuple<Tensor, Tensor> attention_with_stats_meta(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor&,
    const OptionalTensor& ends_q, const OptionalTensor&, std::optional<double>, int64_t, int64_t,
    bool) {
  check_ranks(query, key, value, given(ends_q), "attention");
  return {empty_rows_first(out_sizes(query, value), query), empty_logsumexp(query)};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_meta(
    const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value,
    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const Tensor&,
    const Tensor&, std::optional<double>, int64_t, int64_t, bool, std::array<bool, 3> wanted) {
  const auto gradient = [&](size_t i, const Tensor& input) {
    return wanted[i] ? empty_rows_first(input.sym_sizes(), input) : Tensor();
  };
  return {gradient(0, query), gradient(1, key), gradient(2, value)};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("attention", &attention);
  m.impl("attention_with_stats", &attention_with_stats);
  m.impl("attention_backward", &attention_backward);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("attention", &attention_meta);
  m.impl("attention_with_stats", &attention_with_stats_meta);
  m.impl("attention_backward", &attention_backward_meta);
}

}  // namespace ruda_torch
