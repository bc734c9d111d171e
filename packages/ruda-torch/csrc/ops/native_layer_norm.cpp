// LayerNorm: ruda::layer_norm and its backward, and ATen's native_layer_norm on the same kernels (so
// that torch.nn.LayerNorm runs on them). What the kernels do not take (float64, empty tensors, eps of
// 0) goes to ATen's CPU kernel.

#include "boxed.h"
#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ruda/dnn.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

Tensor empty_contiguous_like(const Tensor& tensor) {
  return at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// x as rows of `width` values; weight and bias as vectors.
struct Shape {
  int64_t rows;
  int64_t width;
};

const ruda_view* vector_view(Views& views, const OptionalTensor& tensor, const char* argument) {
  return given(tensor) ? views.flat(*tensor, argument) : nullptr;
}

// mean and rstd may be undefined.
Tensor forward(const Tensor& x, Shape shape, const OptionalTensor& weight,
               const OptionalTensor& bias, double eps, const Tensor& mean, const Tensor& rstd) {
  static const Kernel kernel("layer_norm.forward", ruda::layer_norm_forward_args_layout);
  const Tensor input = x.contiguous();
  const OptionalTensor scale = contiguous(weight);
  const OptionalTensor shift = contiguous(bias);
  Tensor y = empty_contiguous_like(input);
  Views views("layer_norm");
  const ruda::layer_norm_forward_args args{views.matrix(input, shape.rows, shape.width, "x"),
                                           vector_view(views, scale, "weight"),
                                           vector_view(views, shift, "bias"),
                                           views.matrix(y, shape.rows, shape.width, "y"),
                                           vector_view(views, mean, "mean"),
                                           vector_view(views, rstd, "rstd"),
                                           eps};
  kernel.launch(&args);
  return y;
}

Three backward(const Tensor& grad, const Tensor& x, Shape shape, const Tensor& mean,
               const Tensor& rstd, const OptionalTensor& weight, const OptionalTensor& bias,
               std::array<bool, 3> mask) {
  static const Kernel kernel("layer_norm.backward", ruda::layer_norm_backward_args_layout);
  const Tensor input = x.contiguous();
  const Tensor upper = grad.contiguous();
  const Tensor middle = mean.contiguous();
  const Tensor spread = rstd.contiguous();
  const OptionalTensor scale = contiguous(weight);
  Tensor dx = mask[0] ? empty_contiguous_like(input) : Tensor();
  Tensor dweight = mask[1] && given(weight) ? empty_contiguous_like(*weight) : Tensor();
  Tensor dbias = mask[2] && given(bias) ? empty_contiguous_like(*bias) : Tensor();
  Views views("layer_norm_backward");
  const ruda::layer_norm_backward_args args{
      views.matrix(input, shape.rows, shape.width, "x"),
      vector_view(views, scale, "weight"),
      views.matrix(upper, shape.rows, shape.width, "grad"),
      views.flat(middle, "mean"),
      views.flat(spread, "rstd"),
      mask[0] ? views.matrix(dx, shape.rows, shape.width, "dx") : nullptr,
      vector_view(views, dweight, "dweight"),
      vector_view(views, dbias, "dbias"),
      /*parts=*/0};
  kernel.launch(&args);
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

// ---- ruda::layer_norm: over the last axis ----

void check_vector(const Tensor& x, const OptionalTensor& parameter, const char* name) {
  if (!given(parameter)) return;
  TORCH_CHECK_VALUE(parameter->dim() == 1 && parameter->sym_size(0) == x.sym_size(-1),
                    "[layer_norm] ", name, " must have shape [H] = [", x.sym_size(-1), "], got ",
                    parameter->sym_sizes());
}

void check_shapes(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) >= 1, "[layer_norm] x: got shape ",
                    x.sym_sizes(), ", wanted [..., H] with H of 1 or more");
  check_vector(x, weight, "weight");
  check_vector(x, bias, "bias");
}

Shape last_axis(const Tensor& x) {
  return {c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)};
}

Tensor layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double eps) {
  check_shapes(x, weight, bias);
  return forward(x, last_axis(x), weight, bias, eps, Tensor(), Tensor());
}

Three layer_norm_with_stats(const Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, double eps) {
  check_shapes(x, weight, bias);
  const Shape shape = last_axis(x);
  const auto options = x.options().dtype(at::kFloat);
  Tensor mean = at::empty({shape.rows}, options);
  Tensor rstd = at::empty({shape.rows}, options);
  Tensor y = forward(x, shape, weight, bias, eps, mean, rstd);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& mean,
                          const Tensor& rstd, const OptionalTensor& weight,
                          const OptionalTensor& bias, std::array<bool, 3> mask) {
  check_shapes(x, weight, bias);
  TORCH_CHECK_VALUE(grad.sizes() == x.sizes(), "[layer_norm_backward] grad: got shape ",
                    grad.sizes(), ", wanted x's shape ", x.sizes());
  return backward(grad, x, last_axis(x), mean, rstd, weight, bias, mask);
}

// ---- aten::native_layer_norm ----

bool native_dtype(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

// What ATen's kernel takes as well: parameters in x's dtype, or float32 beside 16-bit storage.
bool parameters_fit(const Tensor& x, at::IntArrayRef shape, const OptionalTensor& weight,
                    const OptionalTensor& bias) {
  for (const OptionalTensor* parameter : {&weight, &bias}) {
    if (!given(*parameter)) continue;
    const Tensor& tensor = **parameter;
    if (!tensor.is_privateuseone() || tensor.sizes() != shape ||
        (tensor.scalar_type() != x.scalar_type() && tensor.scalar_type() != at::kFloat)) {
      return false;
    }
  }
  return !given(weight) || !given(bias) || weight->scalar_type() == bias->scalar_type();
}

bool rows_fit(const Tensor& x, at::IntArrayRef shape) {
  const auto kept = static_cast<int64_t>(shape.size());
  return x.is_privateuseone() && native_dtype(x.scalar_type()) && x.numel() > 0 && kept >= 1 &&
         x.dim() >= kept && x.sizes().slice(x.dim() - kept) == shape;
}

Shape split(const Tensor& x, at::IntArrayRef shape) {
  const int64_t width = c10::multiply_integers(shape);
  return {x.numel() / width, width};
}

// The statistics are float32 whatever the storage, as on torch's other devices.
Three native_layer_norm(const Tensor& x, at::IntArrayRef shape, const OptionalTensor& weight,
                        const OptionalTensor& bias, double eps) {
  const auto narrow = static_cast<float>(eps);
  if (!rows_fit(x, shape) || !parameters_fit(x, shape, weight, bias) ||
      !(narrow > 0.0f && std::isfinite(narrow))) {
    static const BoxedOperator boxed("aten::native_layer_norm");
    return boxed.call<Three, const Tensor&, at::IntArrayRef, const OptionalTensor&,
                      const OptionalTensor&, double>(x, shape, weight, bias, eps);
  }
  c10::DimVector sizes(x.sizes());
  for (size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const auto options = x.options().dtype(at::kFloat);
  Tensor mean = at::empty(sizes, options);
  Tensor rstd = at::empty(sizes, options);
  Tensor y = forward(x, split(x, shape), weight, bias, eps, mean, rstd);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Three native_layer_norm_backward(const Tensor& grad, const Tensor& x, at::IntArrayRef shape,
                                 const Tensor& mean, const Tensor& rstd,
                                 const OptionalTensor& weight, const OptionalTensor& bias,
                                 std::array<bool, 3> mask) {
  const bool statistics = mean.is_privateuseone() && rstd.is_privateuseone() &&
                          mean.scalar_type() == at::kFloat && rstd.scalar_type() == at::kFloat;
  if (!statistics || !rows_fit(x, shape) || !parameters_fit(x, shape, weight, bias) ||
      !grad.is_privateuseone() || grad.scalar_type() != x.scalar_type() ||
      grad.sizes() != x.sizes()) {
    static const BoxedOperator boxed("aten::native_layer_norm_backward");
    return boxed.call<Three, const Tensor&, const Tensor&, at::IntArrayRef, const Tensor&,
                      const Tensor&, const OptionalTensor&, const OptionalTensor&,
                      std::array<bool, 3>>(grad, x, shape, mean, rstd, weight, bias, mask);
  }
  return backward(grad, x, split(x, shape), mean, rstd, weight, bias, mask);
}

// ---- meta ----

Tensor layer_norm_meta(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       double eps) {
  check_shapes(x, weight, bias);
  return empty_contiguous_like(x);
}

Three layer_norm_with_stats_meta(const Tensor& x, const OptionalTensor& weight,
                                 const OptionalTensor& bias, double eps) {
  check_shapes(x, weight, bias);
  c10::SymInt rows = 1;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.sym_size(i);
  const auto options = x.options().dtype(at::kFloat);
  return {empty_contiguous_like(x), at::empty_symint({rows}, options),
          at::empty_symint({rows}, options)};
}

Three layer_norm_backward_meta(const Tensor& grad, const Tensor& x, const Tensor& mean,
                               const Tensor& rstd, const OptionalTensor& weight,
                               const OptionalTensor& bias, std::array<bool, 3> mask) {
  return {mask[0] ? empty_contiguous_like(x) : Tensor(),
          mask[1] && given(weight) ? empty_contiguous_like(*weight) : Tensor(),
          mask[2] && given(bias) ? empty_contiguous_like(*bias) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("layer_norm", &layer_norm);
  m.impl("layer_norm_with_stats", &layer_norm_with_stats);
  m.impl("layer_norm_backward", &layer_norm_backward);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("layer_norm", &layer_norm_meta);
  m.impl("layer_norm_with_stats", &layer_norm_with_stats_meta);
  m.impl("layer_norm_backward", &layer_norm_backward_meta);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", &native_layer_norm);
  m.impl("native_layer_norm_backward", &native_layer_norm_backward);
}

}  // namespace ruda_torch
