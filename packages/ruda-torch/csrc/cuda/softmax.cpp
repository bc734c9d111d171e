// Softmax on the cuda target where ops/softmax.cpp does not launch at once: empty tensors, numbers
// without an axis, and float32 results of 16-bit tensors; and the softmax of attention, whose rows
// of -inf are 0.

#include "cuda/operators.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/all.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/softmax.h>

#include <limits>

namespace ruda_torch {

namespace {

using at::Tensor;

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

using Forward = Tensor (*)(const Tensor&, int64_t, bool);

Tensor forward(const char* operation, Forward again, const Tensor& self, int64_t dim,
               bool half_to_float) {
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  if (half_to_float) {
    TORCH_CHECK(is_half(self.scalar_type()), "[", operation, "] conversion to float32: got ",
                self.scalar_type(), ", wanted a 16-bit dtype");
    return again(self.to(at::kFloat), axis, false);
  }
  if (self.scalar_type() != at::kFloat && !is_half(self.scalar_type())) {
    refuse_on_cuda(operation, self);
  }
  if (self.dim() == 0) return again(self.reshape({1}), 0, false).view(at::IntArrayRef{});
  return at::empty_like(self, at::MemoryFormat::Contiguous);  // without elements
}

using Backward = Tensor (*)(const Tensor&, const Tensor&, int64_t, at::ScalarType);

Tensor backward(const char* operation, Backward again, const Tensor& grad, const Tensor& output,
                int64_t dim, at::ScalarType input_dtype) {
  const int64_t axis = at::maybe_wrap_dim(dim, output.dim());
  TORCH_CHECK(grad.sizes() == output.sizes() && grad.scalar_type() == output.scalar_type() &&
                  grad.device() == output.device(),
              "[", operation, "] grad: got ", grad.scalar_type(), grad.sizes(), " on ",
              grad.device(), ", wanted the output's ", output.scalar_type(), output.sizes(), " on ",
              output.device());
  if (output.scalar_type() != input_dtype) {
    TORCH_CHECK(output.scalar_type() == at::kFloat && is_half(input_dtype), "[", operation,
                "] input_dtype: got ", input_dtype, " for an output of ", output.scalar_type());
    return again(grad, output, axis, at::kFloat).to(input_dtype);
  }
  if (output.scalar_type() != at::kFloat && !is_half(output.scalar_type())) {
    refuse_on_cuda(operation, output);
  }
  if (output.dim() == 0) {
    return again(grad.reshape({1}), output.reshape({1}), 0, input_dtype).view(at::IntArrayRef{});
  }
  return at::empty_like(output, at::MemoryFormat::Contiguous);
}

Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  return forward("aten::_softmax", &at::_softmax, self, dim, half_to_float);
}

Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  return forward("aten::_log_softmax", &at::_log_softmax, self, dim, half_to_float);
}

Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim,
                        at::ScalarType input_dtype) {
  return backward("aten::_softmax_backward_data", &at::_softmax_backward_data, grad, output, dim,
                  input_dtype);
}

Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim,
                            at::ScalarType input_dtype) {
  return backward("aten::_log_softmax_backward_data", &at::_log_softmax_backward_data, grad, output,
                  dim, input_dtype);
}

Tensor safe_softmax(const Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  const Tensor empty_rows = at::all(at::eq(self, nothing), dim, /*keepdim=*/true);
  return at::masked_fill(at::softmax(self, dim, dtype), empty_rows, 0.0);
}

// ---- results that the caller gives --------------------------------------------------------------

Tensor& put(Tensor& out, const Tensor& result) {
  TORCH_CHECK(out.is_privateuseone() && out.scalar_type() == result.scalar_type(),
              "[softmax] out: got ", out.scalar_type(), " on ", out.device(), ", wanted ",
              result.scalar_type(), " on ", result.device());
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

template <auto compute>
Tensor& forward_into(const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  return put(out, compute(self, dim, half_to_float));
}

template <auto compute>
Tensor& backward_into(const Tensor& grad, const Tensor& output, int64_t dim,
                      at::ScalarType input_dtype, Tensor& out) {
  return put(out, compute(grad, output, dim, input_dtype));
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::_softmax", TORCH_FN(softmax));
  library.impl("aten::_log_softmax", TORCH_FN(log_softmax));
  library.impl("aten::_softmax_backward_data", TORCH_FN(softmax_backward));
  library.impl("aten::_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
  library.impl("aten::_softmax.out", TORCH_FN((forward_into<&at::_softmax>)));
  library.impl("aten::_log_softmax.out", TORCH_FN((forward_into<&at::_log_softmax>)));
  library.impl("aten::_log_softmax_backward_data.out",
               TORCH_FN((backward_into<&at::_log_softmax_backward_data>)));
  library.impl("aten::_softmax_backward_data.out",
               TORCH_FN((backward_into<&at::_softmax_backward_data>)));
  library.impl("aten::_safe_softmax", TORCH_FN(safe_softmax));
}

}  // namespace ruda_torch
