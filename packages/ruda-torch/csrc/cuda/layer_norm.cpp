// aten::native_layer_norm on the cuda target where ops/native_layer_norm.cpp does not launch at
// once: wrong shapes (ATen's own errors), tensors without elements, and what no kernel computes.

#include "cuda/operators.h"
#include "ops/host_call.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <limits>
#include <string>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

void check_inputs(const char* operation, const Tensor& x, at::IntArrayRef shape,
                  const OptionalTensor& weight, const OptionalTensor& bias) {
  const Tensor scale = weight.value_or(Tensor()), shift = bias.value_or(Tensor());
  require_ruda(operation, {{"input", x}, {"weight", scale}, {"bias", shift}});
  at::native::_check_layer_norm_inputs(x, shape, scale, shift);
  const auto type = x.scalar_type();
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) {
    refuse_on_cuda(operation, x);
  }
}

std::string dtype_text(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined() ? c10::toString(tensor->scalar_type()) : "none";
}

Three forward(const Tensor& x, at::IntArrayRef shape, const OptionalTensor& weight,
              const OptionalTensor& bias, double eps) {
  constexpr const char* operation = "aten::native_layer_norm";
  check_inputs(operation, x, shape, weight, bias);
  TORCH_CHECK_NOT_IMPLEMENTED(
      x.numel() == 0, "[", operation, "] eps, weight, bias: got ", eps, ", ", dtype_text(weight),
      " and ", dtype_text(bias), ", wanted on the cuda target an eps above 0 that is finite in "
      "float32, and parameters of one dtype, ", x.scalar_type(), " or float32");
  c10::DimVector sizes(x.sizes());
  for (size_t i = sizes.size() - shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const Tensor nothing = at::full(sizes, std::numeric_limits<double>::quiet_NaN(),
                                  x.options().dtype(at::kFloat));
  return {at::empty_like(x, at::MemoryFormat::Contiguous), nothing, nothing.clone()};
}

Three backward(const Tensor& grad, const Tensor& x, at::IntArrayRef shape, const Tensor& mean,
               const Tensor& rstd, const OptionalTensor& weight, const OptionalTensor& bias,
               std::array<bool, 3> mask) {
  constexpr const char* operation = "aten::native_layer_norm_backward";
  check_inputs(operation, x, shape, weight, bias);
  require_ruda(operation, {{"grad_out", grad}, {"mean", mean}, {"rstd", rstd}});
  TORCH_CHECK_NOT_IMPLEMENTED(
      x.numel() == 0, "[", operation, "] grad_out, mean, rstd, weight, bias: got ",
      grad.scalar_type(), grad.sizes(), ", ", mean.scalar_type(), ", ", rstd.scalar_type(), ", ",
      dtype_text(weight), " and ", dtype_text(bias), ", wanted on the cuda target ",
      x.scalar_type(), x.sizes(), ", float32 statistics, and parameters of one dtype, ",
      x.scalar_type(), " or float32");
  const auto zeros = [](const OptionalTensor& like, bool wanted) {
    const bool made = wanted && like.has_value() && like->defined();
    return made ? at::zeros(like->sizes(), like->options()) : Tensor();
  };
  return {mask[0] ? at::empty_like(x, at::MemoryFormat::Contiguous) : Tensor(),
          zeros(weight, mask[1]), zeros(bias, mask[2])};
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::native_layer_norm", TORCH_FN(forward));
  library.impl("aten::native_layer_norm_backward", TORCH_FN(backward));
}

}  // namespace ruda_torch
