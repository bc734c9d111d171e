// LoRA over a frozen NF4 weight: y = x W^T + bias + low B^T with low = scaling * x A^T, and its
// gradients. The update and the base are one kernel call, in both directions; shapes on meta.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ruda/blas.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// The frozen weight and how it is stored.
struct Weight {
  const Tensor& packed;
  const Tensor& scales;
  const Tensor& codebook;
  int64_t out_features;
  int64_t in_features;
  int64_t block_size;
  int64_t tile_rows;
};

void check_last(const Tensor& x, const c10::SymInt& features, const char* operation,
                const char* argument) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == features, "[", operation, "] ", argument,
                    ": got shape ", x.sym_sizes(), ", wanted [..., ", features, "]");
}

void check_adapter(const Tensor& lora_a, const Tensor& lora_b, const c10::SymInt& in_features,
                   const c10::SymInt& out_features, const char* operation) {
  TORCH_CHECK_VALUE(lora_a.dim() == 2 && lora_a.sym_size(1) == in_features, "[", operation,
                    "] lora_a: got shape ", lora_a.sym_sizes(), ", wanted [r, ", in_features, "]");
  TORCH_CHECK_VALUE(lora_b.dim() == 2 && lora_b.sym_size(0) == out_features &&
                        lora_b.sym_size(1) == lora_a.sym_size(0),
                    "[", operation, "] lora_b: got shape ", lora_b.sym_sizes(), ", wanted [",
                    out_features, ", ", lora_a.sym_size(0), "]");
}

Tensor with_last_size(const Tensor& x, const c10::SymInt& width) {
  auto shape = x.sym_sizes().vec();
  shape.back() = width;
  return at::empty_symint(shape, x.options());
}

// [..., columns] -> [rows, columns], contiguous.
Tensor matrix(const Tensor& x) {
  return x.contiguous().view({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)});
}

// out = alpha * a @ b in out's dtype; a and b share a dtype.
void multiply(const char* operation, const Tensor& a, const Tensor& b, const Tensor& out,
              double alpha) {
  static const Kernel kernel("gemm.matmul", ruda::gemm_args_layout);
  Views views(operation);
  const ruda::gemm_args args{views(a, "a"), views(b, "b"), nullptr,          views(out, "out"),
                             alpha,         0.0,           ruda::GEMM_AUTO};
  kernel.launch(&args);
}

// scaling * x[M, n] @ small[n, r] in x's dtype. The small factor is cast, never x.
Tensor low_product(const char* operation, const Tensor& x, const Tensor& small, double scaling) {
  Tensor low = at::empty({x.size(0), small.size(1)}, x.options());
  multiply(operation, x, small.to(x.scalar_type()), low, scaling);
  return low;
}

// rows[M, columns] times the weight or its transpose, plus update_x @ update_w, into y[M, width].
void product(const Kernel& kernel, const char* operation, const Tensor& rows, const Weight& weight,
             const OptionalTensor& bias, const Tensor& update_x, const Tensor& update_w,
             const Tensor& y) {
  const Tensor codes = weight.packed.contiguous();
  const Tensor maxima = weight.scales.contiguous();
  const Tensor values = weight.codebook.contiguous();
  const OptionalTensor offset = contiguous(bias);
  Views views(operation);
  const ruda::nf4_matmul_args args{views(rows, "x"),
                                   views(codes, "packed"),
                                   views(maxima, "scales"),
                                   views(values, "codebook"),
                                   views.optional(offset, "bias"),
                                   views.matrix(y, rows.size(0), y.size(-1), "y"),
                                   weight.out_features,
                                   weight.in_features,
                                   weight.block_size,
                                   weight.tile_rows,
                                   views(update_x, "low"),
                                   views(update_w, "lora")};
  kernel.launch(&args);
}

Tensor lora_low(const Tensor& x, const Tensor& lora_a, double scaling) {
  TORCH_CHECK_VALUE(lora_a.dim() == 2, "[lora_low] lora_a: got shape ", lora_a.sizes(),
                    ", wanted [r, in]");
  check_last(x, lora_a.sym_size(1), "lora_low", "x");
  return low_product("lora_low", matrix(x), lora_a.t(), scaling);
}

Tensor from_low(const Tensor& x, const Tensor& low, const Tensor& packed, const Tensor& scales,
                const Tensor& codebook, const OptionalTensor& bias, const Tensor& lora_b,
                int64_t out_features, int64_t in_features, int64_t block_size,
                int64_t tile_rows) {
  static const Kernel kernel("nf4.matmul", ruda::nf4_matmul_args_layout);
  check_last(x, in_features, "nf4_lora_linear", "x");
  TORCH_CHECK_VALUE(lora_b.dim() == 2 && lora_b.size(0) == out_features,
                    "[nf4_lora_linear] lora_b: got shape ", lora_b.sizes(), ", wanted [",
                    out_features, ", r]");
  Tensor y = with_last_size(x, out_features);
  product(kernel, "nf4_lora_linear", matrix(x),
          {packed, scales, codebook, out_features, in_features, block_size, tile_rows}, bias, low,
          lora_b.t(), y);
  return y;
}

Tensor linear(const Tensor& x, const Tensor& packed, const Tensor& scales, const Tensor& codebook,
              const OptionalTensor& bias, const Tensor& lora_a, const Tensor& lora_b,
              double scaling, int64_t out_features, int64_t in_features, int64_t block_size,
              int64_t tile_rows) {
  check_last(x, in_features, "nf4_lora_linear", "x");
  check_adapter(lora_a, lora_b, in_features, out_features, "nf4_lora_linear");
  const Tensor low = low_product("nf4_lora_linear", matrix(x), lora_a.t(), scaling);
  return from_low(x, low, packed, scales, codebook, bias, lora_b, out_features, in_features,
                  block_size, tile_rows);
}

// left[M, n]^T @ right[M, m] in `like`'s dtype: the gradient of one factor.
Tensor factor_gradient(const Tensor& left, const Tensor& right, const Tensor& like) {
  if (left.size(0) == 0) return at::zeros(like.sizes(), like.options());
  Tensor gradient = at::empty(like.sizes(), like.options());
  multiply("nf4_lora_linear_backward", left.t(), right, gradient, 1.0);
  return gradient;
}

Gradients backward(const Tensor& grad, const Tensor& x, const Tensor& low, const Tensor& packed,
                   const Tensor& scales, const Tensor& codebook, const Tensor& lora_a,
                   const Tensor& lora_b, double scaling, int64_t out_features, int64_t in_features,
                   int64_t block_size, int64_t tile_rows, std::array<bool, 3> mask) {
  static const Kernel kernel("nf4.input_grad", ruda::nf4_matmul_args_layout);
  constexpr const char* operation = "nf4_lora_linear_backward";
  check_last(grad, out_features, operation, "grad");
  check_last(x, in_features, operation, "x");
  check_adapter(lora_a, lora_b, in_features, out_features, operation);
  const Tensor upper = matrix(grad);
  Gradients result;
  auto& [dx, da, db] = result;
  if (mask[0] || mask[1]) {
    const Tensor narrow = low_product(operation, upper, lora_b, scaling);  // [M, r]
    if (mask[0]) {
      dx = with_last_size(grad, in_features);
      product(kernel, operation, upper,
              {packed, scales, codebook, out_features, in_features, block_size, tile_rows},
              std::nullopt, narrow, lora_a, dx);
    }
    if (mask[1]) da = factor_gradient(narrow, matrix(x), lora_a);
  }
  if (mask[2]) db = factor_gradient(upper, low, lora_b);
  return result;
}

Tensor lora_low_meta(const Tensor& x, const Tensor& lora_a, double scaling) {
  TORCH_CHECK_VALUE(lora_a.dim() == 2, "[lora_low] lora_a: got shape ", lora_a.sym_sizes(),
                    ", wanted [r, in]");
  check_last(x, lora_a.sym_size(1), "lora_low", "x");
  const auto sizes = x.sym_sizes();
  return at::empty_symint(
      {c10::multiply_integers(sizes.begin(), sizes.end() - 1), lora_a.sym_size(0)}, x.options());
}

Tensor from_low_meta(const Tensor& x, const Tensor& low, const Tensor& packed,
                     const Tensor& scales, const Tensor& codebook, const OptionalTensor& bias,
                     const Tensor& lora_b, int64_t out_features, int64_t in_features,
                     int64_t block_size, int64_t tile_rows) {
  check_last(x, in_features, "nf4_lora_linear", "x");
  return with_last_size(x, out_features);
}

Tensor linear_meta(const Tensor& x, const Tensor& packed, const Tensor& scales,
                   const Tensor& codebook, const OptionalTensor& bias, const Tensor& lora_a,
                   const Tensor& lora_b, double scaling, int64_t out_features, int64_t in_features,
                   int64_t block_size, int64_t tile_rows) {
  check_last(x, in_features, "nf4_lora_linear", "x");
  check_adapter(lora_a, lora_b, in_features, out_features, "nf4_lora_linear");
  return with_last_size(x, out_features);
}

Gradients backward_meta(const Tensor& grad, const Tensor& x, const Tensor& low,
                        const Tensor& packed, const Tensor& scales, const Tensor& codebook,
                        const Tensor& lora_a, const Tensor& lora_b, double scaling,
                        int64_t out_features, int64_t in_features, int64_t block_size,
                        int64_t tile_rows, std::array<bool, 3> mask) {
  check_last(grad, out_features, "nf4_lora_linear_backward", "grad");
  const auto like = [](const Tensor& tensor, bool wanted) {
    return wanted ? at::empty_symint(tensor.sym_sizes(), tensor.options()) : Tensor();
  };
  return {mask[0] ? with_last_size(grad, in_features) : Tensor(), like(lora_a, mask[1]),
          like(lora_b, mask[2])};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("nf4_lora_linear", &linear);
  m.impl("lora_low", &lora_low);
  m.impl("nf4_lora_linear_from_low", &from_low);
  m.impl("nf4_lora_linear_backward", &backward);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("nf4_lora_linear", &linear_meta);
  m.impl("lora_low", &lora_low_meta);
  m.impl("nf4_lora_linear_from_low", &from_low_meta);
  m.impl("nf4_lora_linear_backward", &backward_meta);
}

}  // namespace ruda_torch
