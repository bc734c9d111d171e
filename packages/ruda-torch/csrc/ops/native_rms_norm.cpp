// ruda::rms_norm and its backward on ruda, and their shapes on meta.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ruda/dnn.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor empty_contiguous_like(const Tensor& tensor) {
  return at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

void check_rank(const Tensor& x, const char* operation) {
  TORCH_CHECK_VALUE(x.dim() >= 1, "[", operation, "] x: got a tensor without dimensions, wanted "
                    "[..., H]");
}

Tensor run_forward(const Tensor& x, const OptionalTensor& weight, double eps, const Tensor& rstd) {
  static const Kernel kernel("rms_norm.forward", ruda::rms_norm_forward_args_layout);
  check_rank(x, "rms_norm");
  const Tensor input = x.contiguous();
  const OptionalTensor scale = contiguous(weight);
  Tensor y = empty_contiguous_like(input);
  Views views("rms_norm");
  const ruda::rms_norm_forward_args args{views(input, "x"), views.optional(scale, "weight"),
                                         views(y, "y"), views.optional(rstd, "rstd"), eps};
  kernel.launch(&args);
  return y;
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, double eps) {
  return run_forward(x, weight, eps, Tensor());
}

std::tuple<Tensor, Tensor> rms_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                                               double eps) {
  check_rank(x, "rms_norm");
  const int64_t rows = c10::multiply_integers(x.sizes().slice(0, x.dim() - 1));
  Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  Tensor y = run_forward(x, weight, eps, rstd);
  return {std::move(y), std::move(rstd)};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x,
                                             const OptionalTensor& weight, const Tensor& rstd,
                                             std::array<bool, 2> mask) {
  static const Kernel kernel("rms_norm.backward", ruda::rms_norm_backward_args_layout);
  const Tensor input = x.contiguous();
  const Tensor upper = grad.contiguous();
  const Tensor statistics = rstd.contiguous();
  const OptionalTensor scale = contiguous(weight);
  const Tensor dx = mask[0] ? empty_contiguous_like(input) : Tensor();
  const Tensor dweight = mask[1] && scale ? empty_contiguous_like(*scale) : Tensor();
  Views views("rms_norm_backward");
  const ruda::rms_norm_backward_args args{
      views(input, "x"),         views.optional(scale, "weight"), views(upper, "grad"),
      views(statistics, "rstd"), views.optional(dx, "dx"),        views.optional(dweight, "dweight"),
      /*parts=*/0};
  kernel.launch(&args);
  return {dx, dweight};
}

// ---- meta ----

void check_weight_meta(const Tensor& x, const OptionalTensor& weight) {
  check_rank(x, "rms_norm");
  if (!weight.has_value() || !weight->defined()) return;
  TORCH_CHECK_VALUE(weight->dim() == 1 && weight->sym_size(0) == x.sym_size(-1),
                    "[rms_norm] weight must have shape [H] = [", x.sym_size(-1), "], got ",
                    weight->sym_sizes());
}

Tensor rms_norm_meta(const Tensor& x, const OptionalTensor& weight, double eps) {
  check_weight_meta(x, weight);
  return empty_contiguous_like(x);
}

std::tuple<Tensor, Tensor> rms_norm_with_stats_meta(const Tensor& x, const OptionalTensor& weight,
                                                    double eps) {
  check_weight_meta(x, weight);
  c10::SymInt rows = 1;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.sym_size(i);
  return {empty_contiguous_like(x),
          at::empty_symint({rows}, x.options().dtype(at::kFloat))};
}

std::tuple<Tensor, Tensor> rms_norm_backward_meta(const Tensor& grad, const Tensor& x,
                                                  const OptionalTensor& weight, const Tensor& rstd,
                                                  std::array<bool, 2> mask) {
  const bool has_weight = weight.has_value() && weight->defined();
  return {mask[0] ? empty_contiguous_like(x) : Tensor(),
          mask[1] && has_weight ? empty_contiguous_like(*weight) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm_with_stats", &rms_norm_with_stats);
  m.impl("rms_norm_backward", &rms_norm_backward);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("rms_norm", &rms_norm_meta);
  m.impl("rms_norm_with_stats", &rms_norm_with_stats_meta);
  m.impl("rms_norm_backward", &rms_norm_backward_meta);
}

}  // namespace ruda_torch
