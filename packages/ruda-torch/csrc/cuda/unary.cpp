// Pointwise operators of one tensor on the cuda target.

#include "cuda/pointwise_forms.h"

#include <ATen/native/BinaryOps.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/cosh_native.h>
#include <ATen/ops/deg2rad_native.h>
#include <ATen/ops/exp2_native.h>
#include <ATen/ops/frac_native.h>
#include <ATen/ops/isinf_native.h>
#include <ATen/ops/isneginf_native.h>
#include <ATen/ops/isposinf_native.h>
#include <ATen/ops/log10_native.h>
#include <ATen/ops/logical_not_native.h>
#include <ATen/ops/logit_backward_native.h>
#include <ATen/ops/logit_native.h>
#include <ATen/ops/nan_to_num_native.h>
#include <ATen/ops/rad2deg_native.h>
#include <ATen/ops/round_native.h>
#include <ATen/ops/sgn_native.h>
#include <ATen/ops/sign_native.h>
#include <ATen/ops/sinh_native.h>
#include <ATen/ops/tan_native.h>
#include <ATen/ops/trunc_native.h>

#include <cmath>
#include <limits>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

// A question about every element.
Tensor ask(const char* op, const Tensor& self) {
  stub::begin();
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .check_all_same_dtype(false)
                                    .declare_static_dtype(at::kBool)
                                    .add_owned_output(Tensor())
                                    .add_const_input(self)
                                    .build();
  pointwise(op, iterator, self.scalar_type());
  return iterator.output();
}

Tensor isnan(const Tensor& self) { return ask("isnan", self); }

Tensor isinf(const Tensor& self) {
  if (!c10::isFloatingType(self.scalar_type())) return native::isinf(self);
  return ask("isinf", self);
}

void bitwise_not(at::TensorIteratorBase& iterator) {
  const bool logical = iterator.common_dtype() == at::kBool;
  pointwise(logical ? "logical_not" : "bitwise_not", iterator);
}

void logical_not(at::TensorIteratorBase& iterator) {
  pointwise("logical_not", iterator, iterator.dtype(1));
}

void nan_to_num(at::TensorIteratorBase& iterator, std::optional<double> nan,
                std::optional<double> highest, std::optional<double> lowest) {
  double largest = std::numeric_limits<double>::max();
  switch (iterator.common_dtype()) {
    case at::kFloat: largest = std::numeric_limits<float>::max(); break;
    case at::kHalf: largest = std::numeric_limits<at::Half>::max(); break;
    case at::kBFloat16: largest = std::numeric_limits<at::BFloat16>::max(); break;
    default: break;
  }
  pointwise("nan_to_num", iterator,
            {nan.value_or(0.0), highest.value_or(largest), lowest.value_or(-largest)});
}

void isposinf(at::TensorIteratorBase& iterator) {
  pointwise("isposinf", iterator, iterator.dtype(1));
}

void isneginf(at::TensorIteratorBase& iterator) {
  pointwise("isneginf", iterator, iterator.dtype(1));
}

void round_decimals(at::TensorIteratorBase& iterator, int64_t decimals) {
  const double power = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  pointwise(decimals < 0 ? "round_from" : "round_to", iterator, {power});
}

void logit(at::TensorIteratorBase& iterator, const Scalar& eps) {
  pointwise("logit", iterator, {eps});
}

void logit_backward(at::TensorIteratorBase& iterator, const Scalar& eps) {
  pointwise("logit_backward", iterator, {eps});
}

template <class Structured>
void add_unary(CudaOperators& library, const char* fresh, const char* in_place, const char* out) {
  add_forms<Structured, const Tensor&>(library, fresh, in_place, out);
}

RUDA_CUDA_OPERATORS(library) {
  stub::use_on_cuda<native::bitwise_not_stub>(&bitwise_not);
  stub::use_on_cuda<native::ceil_stub>(RUDA_POINTWISE("ceil"));
  stub::use_on_cuda<native::cos_stub>(RUDA_POINTWISE("cos"));
  stub::use_on_cuda<native::erf_stub>(RUDA_POINTWISE("erf"));
  stub::use_on_cuda<native::exp_stub>(RUDA_POINTWISE("exp"));
  stub::use_on_cuda<native::expm1_stub>(RUDA_POINTWISE("expm1"));
  stub::use_on_cuda<native::floor_stub>(RUDA_POINTWISE("floor"));
  stub::use_on_cuda<native::log_stub>(RUDA_POINTWISE("log"));
  stub::use_on_cuda<native::log1p_stub>(RUDA_POINTWISE("log1p"));
  stub::use_on_cuda<native::log2_stub>(RUDA_POINTWISE("log2"));
  stub::use_on_cuda<native::neg_stub>(RUDA_POINTWISE("neg"));
  stub::use_on_cuda<native::reciprocal_stub>(RUDA_POINTWISE("reciprocal"));
  stub::use_on_cuda<native::round_stub>(RUDA_POINTWISE("round"));
  stub::use_on_cuda<native::rsqrt_stub>(RUDA_POINTWISE("rsqrt"));
  stub::use_on_cuda<native::sigmoid_stub>(RUDA_POINTWISE("sigmoid"));
  stub::use_on_cuda<native::sin_stub>(RUDA_POINTWISE("sin"));
  stub::use_on_cuda<native::sqrt_stub>(RUDA_POINTWISE("sqrt"));
  stub::use_on_cuda<native::tanh_stub>(RUDA_POINTWISE("tanh"));
  stub::use_only_on_cuda<native::abs_stub>(RUDA_POINTWISE("abs"));
  stub::use_only_on_cuda<native::cosh_stub>(RUDA_POINTWISE("cosh"));
  stub::use_only_on_cuda<native::exp2_stub>(RUDA_POINTWISE("exp2"));
  stub::use_only_on_cuda<native::frac_stub>(RUDA_POINTWISE("frac"));
  stub::use_only_on_cuda<native::isneginf_stub>(&isneginf);
  stub::use_only_on_cuda<native::isposinf_stub>(&isposinf);
  stub::use_only_on_cuda<native::log10_stub>(RUDA_POINTWISE("log10"));
  stub::use_only_on_cuda<native::logical_not_stub>(&logical_not);
  stub::use_only_on_cuda<native::logit_stub>(&logit);
  stub::use_only_on_cuda<native::logit_backward_stub>(&logit_backward);
  stub::use_only_on_cuda<native::nan_to_num_stub>(&nan_to_num);
  stub::use_only_on_cuda<native::round_decimals_stub>(&round_decimals);
  stub::use_only_on_cuda<native::sign_stub>(RUDA_POINTWISE("sign"));
  stub::use_only_on_cuda<native::sinh_stub>(RUDA_POINTWISE("sinh"));
  stub::use_only_on_cuda<native::tan_stub>(RUDA_POINTWISE("tan"));
  stub::use_only_on_cuda<native::trunc_stub>(RUDA_POINTWISE("trunc"));

  add_unary<native::structured_cosh_out>(library, "aten::cosh", "aten::cosh_", "aten::cosh.out");
  add_unary<native::structured_exp2_out>(library, "aten::exp2", "aten::exp2_", "aten::exp2.out");
  add_unary<native::structured_frac_out>(library, "aten::frac", "aten::frac_", "aten::frac.out");
  add_unary<native::structured_isneginf_out>(library, "aten::isneginf", nullptr,
                                             "aten::isneginf.out");
  add_unary<native::structured_isposinf_out>(library, "aten::isposinf", nullptr,
                                             "aten::isposinf.out");
  add_unary<native::structured_log10_out>(library, "aten::log10", "aten::log10_", "aten::log10.out");
  add_unary<native::structured_sgn_out>(library, "aten::sgn", "aten::sgn_", "aten::sgn.out");
  add_unary<native::structured_sign_out>(library, "aten::sign", "aten::sign_", "aten::sign.out");
  add_unary<native::structured_sinh_out>(library, "aten::sinh", "aten::sinh_", "aten::sinh.out");
  add_unary<native::structured_tan_out>(library, "aten::tan", "aten::tan_", "aten::tan.out");
  add_unary<native::structured_trunc_out>(library, "aten::trunc", "aten::trunc_", "aten::trunc.out");

  library.impl("aten::abs", TORCH_FN(native::abs));
  library.impl("aten::abs_", TORCH_FN(native::abs_));
  library.impl("aten::abs.out", TORCH_FN(native::abs_out));
  library.impl("aten::deg2rad", TORCH_FN(native::deg2rad));
  library.impl("aten::deg2rad_", TORCH_FN(native::deg2rad_));
  library.impl("aten::deg2rad.out", TORCH_FN(native::deg2rad_out));
  library.impl("aten::rad2deg", TORCH_FN(native::rad2deg));
  library.impl("aten::rad2deg_", TORCH_FN(native::rad2deg_));
  library.impl("aten::rad2deg.out", TORCH_FN(native::rad2deg_out));
  add_forms<native::structured_round_decimals_out, const Tensor&, int64_t>(
      library, "aten::round.decimals", "aten::round_.decimals", "aten::round.decimals_out");
  library.impl("aten::logical_not", TORCH_FN(native::logical_not));
  library.impl("aten::logical_not_", TORCH_FN(native::logical_not_));
  library.impl("aten::logical_not.out", TORCH_FN(native::logical_not_out));
  library.impl("aten::logit", TORCH_FN(native::logit));
  library.impl("aten::logit_", TORCH_FN(native::logit_));
  library.impl("aten::logit.out", TORCH_FN(native::logit_out));
  add_forms<native::structured_logit_backward_out, const Tensor&, const Tensor&,
            std::optional<double>>(library, "aten::logit_backward", nullptr,
                                   "aten::logit_backward.grad_input");
  library.impl("aten::nan_to_num", TORCH_FN(native::nan_to_num));
  library.impl("aten::nan_to_num_", TORCH_FN(native::nan_to_num_));
  library.impl("aten::nan_to_num.out", TORCH_FN(native::nan_to_num_out));
  library.impl("aten::isnan", TORCH_FN(isnan));
  library.impl("aten::isinf", TORCH_FN(isinf));
}

}  // namespace

}  // namespace ruda_torch::cuda
