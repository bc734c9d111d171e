// ruda::nf4_linear and its input gradient on ruda, and their shapes on meta.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ruda/blas.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

void check_input(const Tensor& x, const c10::SymInt& features, const char* operation,
                 const char* argument) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == features, "[", operation, "] ", argument,
                    ": got shape ", x.sym_sizes(), ", wanted [..., ", features, "]");
}

// x[..., columns] times the weight or its transpose -> [..., width].
Tensor multiply(const Kernel& kernel, const char* operation, const Tensor& x, const Tensor& packed,
                const Tensor& scales, const Tensor& codebook, const OptionalTensor& bias,
                int64_t columns, int64_t width, int64_t out_features, int64_t in_features,
                int64_t block_size, int64_t tile_rows) {
  const Tensor input = x.contiguous();
  const Tensor codes = packed.contiguous();
  const Tensor maxima = scales.contiguous();
  const Tensor values = codebook.contiguous();
  const OptionalTensor offset = contiguous(bias);
  const int64_t rows = c10::multiply_integers(input.sizes().slice(0, input.dim() - 1));
  auto shape = input.sizes().vec();
  shape.back() = width;
  Tensor y = at::empty(shape, input.options());
  Views views(operation);
  const ruda::nf4_matmul_args args{views.matrix(input, rows, columns, "x"),
                                   views(codes, "packed"),
                                   views(maxima, "scales"),
                                   views(values, "codebook"),
                                   views.optional(offset, "bias"),
                                   views.matrix(y, rows, width, "y"),
                                   out_features,
                                   in_features,
                                   block_size,
                                   tile_rows,
                                   /*update_x=*/nullptr,
                                   /*update_w=*/nullptr};
  kernel.launch(&args);
  return y;
}

Tensor nf4_linear(const Tensor& x, const Tensor& packed, const Tensor& scales,
                  const Tensor& codebook, const OptionalTensor& bias, int64_t out_features,
                  int64_t in_features, int64_t block_size, int64_t tile_rows) {
  static const Kernel kernel("nf4.matmul", ruda::nf4_matmul_args_layout);
  check_input(x, in_features, "nf4_linear", "x");
  return multiply(kernel, "nf4_linear", x, packed, scales, codebook, bias, in_features,
                  out_features, out_features, in_features, block_size, tile_rows);
}

Tensor nf4_linear_input_grad(const Tensor& grad, const Tensor& packed, const Tensor& scales,
                             const Tensor& codebook, int64_t out_features, int64_t in_features,
                             int64_t block_size, int64_t tile_rows) {
  static const Kernel kernel("nf4.input_grad", ruda::nf4_matmul_args_layout);
  check_input(grad, out_features, "nf4_linear_input_grad", "grad");
  return multiply(kernel, "nf4_linear_input_grad", grad, packed, scales, codebook, std::nullopt,
                  out_features, in_features, out_features, in_features, block_size, tile_rows);
}

Tensor with_last_size(const Tensor& x, int64_t width) {
  auto shape = x.sym_sizes().vec();
  shape.back() = width;
  return at::empty_symint(shape, x.options());
}

Tensor nf4_linear_meta(const Tensor& x, const Tensor& packed, const Tensor& scales,
                       const Tensor& codebook, const OptionalTensor& bias, int64_t out_features,
                       int64_t in_features, int64_t block_size, int64_t tile_rows) {
  check_input(x, in_features, "nf4_linear", "x");
  return with_last_size(x, out_features);
}

Tensor nf4_linear_input_grad_meta(const Tensor& grad, const Tensor& packed, const Tensor& scales,
                                  const Tensor& codebook, int64_t out_features,
                                  int64_t in_features, int64_t block_size, int64_t tile_rows) {
  check_input(grad, out_features, "nf4_linear_input_grad", "grad");
  return with_last_size(grad, in_features);
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("nf4_linear", &nf4_linear);
  m.impl("nf4_linear_input_grad", &nf4_linear_input_grad);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("nf4_linear", &nf4_linear_meta);
  m.impl("nf4_linear_input_grad", &nf4_linear_input_grad_meta);
}

}  // namespace ruda_torch
