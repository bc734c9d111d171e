// Pointwise operators of two tensors, or of a tensor and a number, on the cuda target.

#include "cuda/pointwise_forms.h"

#include <ATen/native/BinaryOps.h>
#include <ATen/native/Pow.h>
#include <ATen/ops/bitwise_left_shift_native.h>
#include <ATen/ops/bitwise_right_shift_native.h>
#include <ATen/ops/copysign_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/floor_divide_native.h>
#include <ATen/ops/fmax_native.h>
#include <ATen/ops/fmin_native.h>
#include <ATen/ops/fmod_native.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/le_native.h>
#include <ATen/ops/logaddexp_native.h>
#include <ATen/ops/logical_and_native.h>
#include <ATen/ops/logical_or_native.h>
#include <ATen/ops/logical_xor_native.h>
#include <ATen/ops/lshift_native.h>
#include <ATen/ops/lt_native.h>
#include <ATen/ops/ne_native.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/remainder_native.h>
#include <ATen/ops/rshift_native.h>
#include <ATen/ops/rsub_native.h>
#include <ATen/ops/xlogy_native.h>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

void add(at::TensorIteratorBase& iterator, const Scalar& alpha) {
  if (!alpha.isComplex() && alpha.toDouble() == 1.0) {
    pointwise("add", iterator);
  } else if (!alpha.isComplex() && alpha.toDouble() == -1.0) {
    pointwise("sub", iterator);
  } else {
    pointwise("add_scaled", iterator, {alpha});
  }
}

// Powers that ATen computes without pow, too.
void power(at::TensorIteratorBase& iterator, const Scalar& exponent) {
  const char* special = nullptr;
  if (!exponent.isComplex()) {
    const double value = exponent.toDouble();
    const bool floating = c10::isFloatingType(iterator.common_dtype());
    if (value == 2.0) special = "square";
    if (value == 3.0) special = "cube";
    if (value == 0.5 && floating) special = "sqrt";
    if (value == -0.5 && floating) special = "rsqrt";
    if (value == -1.0 && floating) special = "reciprocal";
    if (value == -2.0 && floating) special = "inverse_square";
  }
  if (special != nullptr) {
    pointwise(special, iterator);
  } else {
    pointwise("pow", iterator, {exponent});
  }
}

template <class Structured>
void add_binary(CudaOperators& library, const char* fresh, const char* in_place, const char* out) {
  add_forms<Structured, const Tensor&, const Tensor&>(library, fresh, in_place, out);
}

// Forms that the host target leaves to the boxed kernel.
#define RUDA_COMPARISON(name)                                                                     \
  stub::use_on_cuda<native::name##_stub>(RUDA_POINTWISE(#name));                                  \
  add_binary<native::structured_##name##_Tensor_out>(library, nullptr, "aten::" #name "_.Tensor", \
                                                     nullptr);                                    \
  add_forms<native::structured_##name##_Scalar_out, const Tensor&, const Scalar&>(                \
      library, nullptr, "aten::" #name "_.Scalar", "aten::" #name ".Scalar_out")

// The result of ATen's functional form is where the first tensor is, which may be a number on the CPU.
Tensor logical(const char* op, const Tensor& a, const Tensor& b) {
  stub::begin();
  Tensor result;
  at::TensorIterator iterator = at::TensorIterator::comparison_op(result, a, b);
  pointwise(op, iterator);
  return iterator.output();
}

Tensor logical_and(const Tensor& a, const Tensor& b) { return logical("logical_and", a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return logical("logical_or", a, b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return logical("logical_xor", a, b); }

#define RUDA_LOGICAL(name)                                                                \
  stub::use_only_on_cuda<native::logical_##name##_stub>(RUDA_POINTWISE("logical_" #name)); \
  library.impl("aten::logical_" #name, TORCH_FN(logical_##name));                         \
  library.impl("aten::logical_" #name "_", TORCH_FN(native::logical_##name##_));          \
  library.impl("aten::logical_" #name ".out", TORCH_FN(native::logical_##name##_out))

using TensorTensor = Tensor (*)(const Tensor&, const Tensor&);
using ScalarTensor = Tensor (*)(const Scalar&, const Tensor&);
using TensorScalar = Tensor (*)(const Tensor&, const Scalar&);
using InPlaceTensor = Tensor& (*)(Tensor&, const Tensor&);
using InPlaceScalar = Tensor& (*)(Tensor&, const Scalar&);

using Subtraction = Tensor (*)(const Tensor&, const Tensor&, const Scalar&);

template <auto function>
auto overload() {
  return c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(function)>, function>();
}

void add_arithmetic(CudaOperators& library) {
  stub::use_on_cuda<native::add_stub>(&add);
  stub::use_on_cuda<native::mul_stub>(RUDA_POINTWISE("mul"));
  stub::use_on_cuda<native::div_true_stub>(RUDA_POINTWISE("div"));
  stub::use_on_cuda<native::maximum_stub>(RUDA_POINTWISE("maximum"));
  stub::use_on_cuda<native::minimum_stub>(RUDA_POINTWISE("minimum"));
  stub::use_on_cuda<native::pow_tensor_tensor_stub>(RUDA_POINTWISE("pow"));
  stub::use_on_cuda<native::pow_tensor_scalar_stub>(&power);
  stub::use_on_cuda<native::sigmoid_backward_stub>(RUDA_POINTWISE("sigmoid_backward"));
  stub::use_on_cuda<native::tanh_backward_stub>(RUDA_POINTWISE("tanh_backward"));
  stub::use_only_on_cuda<native::div_floor_stub>(RUDA_POINTWISE("div_floor"));
  stub::use_only_on_cuda<native::div_trunc_stub>(RUDA_POINTWISE("div_trunc"));
  stub::use_only_on_cuda<native::remainder_stub>(RUDA_POINTWISE("remainder"));
  stub::use_only_on_cuda<native::fmod_stub>(RUDA_POINTWISE("fmod"));
  stub::use_only_on_cuda<native::fmax_stub>(RUDA_POINTWISE("fmax"));
  stub::use_only_on_cuda<native::fmin_stub>(RUDA_POINTWISE("fmin"));
  stub::use_only_on_cuda<native::copysign_stub>(RUDA_POINTWISE("copysign"));
  stub::use_only_on_cuda<native::logaddexp_stub>(RUDA_POINTWISE("logaddexp"));
  stub::use_only_on_cuda<native::xlogy_stub>(RUDA_POINTWISE("xlogy"));

  library.impl("aten::rsub.Tensor", overload<static_cast<Subtraction>(&native::rsub)>());
  add_forms<native::structured_div_out_mode, const Tensor&, const Tensor&,
            std::optional<c10::string_view>>(library, "aten::div.Tensor_mode",
                                             "aten::div_.Tensor_mode", "aten::div.out_mode");
  library.impl("aten::floor_divide", overload<static_cast<TensorTensor>(&native::floor_divide)>());
  library.impl("aten::floor_divide_.Tensor",
               overload<static_cast<InPlaceTensor>(&native::floor_divide_)>());
  library.impl("aten::floor_divide.out", TORCH_FN(native::floor_divide_out));
  add_binary<native::structured_remainder_out>(library, "aten::remainder.Tensor",
                                               "aten::remainder_.Tensor",
                                               "aten::remainder.Tensor_out");
  library.impl("aten::remainder.Scalar_Tensor",
               overload<static_cast<ScalarTensor>(&native::remainder)>());
  add_binary<native::structured_fmod_out>(library, "aten::fmod.Tensor", "aten::fmod_.Tensor",
                                          "aten::fmod.Tensor_out");
  add_binary<native::structured_fmax_out>(library, "aten::fmax", nullptr, "aten::fmax.out");
  add_binary<native::structured_fmin_out>(library, "aten::fmin", nullptr, "aten::fmin.out");
  add_forms<native::structured_pow_Scalar_out, const Scalar&, const Tensor&>(
      library, "aten::pow.Scalar", nullptr, "aten::pow.Scalar_out");
  add_forms<native::structured_pow_Tensor_Scalar_out, const Tensor&, const Scalar&>(
      library, nullptr, nullptr, "aten::pow.Tensor_Scalar_out");
  add_binary<native::structured_copysign_out>(library, "aten::copysign.Tensor",
                                              "aten::copysign_.Tensor", "aten::copysign.out");
  add_binary<native::structured_logaddexp_out>(library, "aten::logaddexp", nullptr,
                                               "aten::logaddexp.out");
  add_binary<native::structured_xlogy_out>(library, "aten::xlogy.Tensor", "aten::xlogy_.Tensor",
                                           "aten::xlogy.OutTensor");
  library.impl("aten::xlogy.Scalar_Self", overload<static_cast<ScalarTensor>(&native::xlogy)>());
  library.impl("aten::xlogy.Scalar_Other", overload<static_cast<TensorScalar>(&native::xlogy)>());
  library.impl("aten::xlogy_.Scalar_Other",
               overload<static_cast<InPlaceScalar>(&native::xlogy_)>());
}

void add_bits(CudaOperators& library) {
  stub::use_on_cuda<native::bitwise_and_stub>(RUDA_POINTWISE("bitwise_and"));
  stub::use_on_cuda<native::bitwise_or_stub>(RUDA_POINTWISE("bitwise_or"));
  stub::use_on_cuda<native::bitwise_xor_stub>(RUDA_POINTWISE("bitwise_xor"));
  stub::use_only_on_cuda<native::lshift_stub>(RUDA_POINTWISE("left_shift"));
  stub::use_only_on_cuda<native::rshift_stub>(RUDA_POINTWISE("right_shift"));
  add_binary<native::structured_bitwise_left_shift_out>(
      library, "aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift_.Tensor",
      "aten::bitwise_left_shift.Tensor_out");
  add_binary<native::structured_bitwise_right_shift_out>(
      library, "aten::bitwise_right_shift.Tensor", "aten::bitwise_right_shift_.Tensor",
      "aten::bitwise_right_shift.Tensor_out");
  library.impl("aten::__lshift__.Tensor", overload<static_cast<TensorTensor>(&native::__lshift__)>());
  library.impl("aten::__lshift__.Scalar", overload<static_cast<TensorScalar>(&native::__lshift__)>());
  library.impl("aten::__ilshift__.Tensor",
               overload<static_cast<InPlaceTensor>(&native::__ilshift__)>());
  library.impl("aten::__ilshift__.Scalar",
               overload<static_cast<InPlaceScalar>(&native::__ilshift__)>());
  library.impl("aten::__rshift__.Tensor", overload<static_cast<TensorTensor>(&native::__rshift__)>());
  library.impl("aten::__rshift__.Scalar", overload<static_cast<TensorScalar>(&native::__rshift__)>());
  library.impl("aten::__irshift__.Tensor",
               overload<static_cast<InPlaceTensor>(&native::__irshift__)>());
  library.impl("aten::__irshift__.Scalar",
               overload<static_cast<InPlaceScalar>(&native::__irshift__)>());
}

RUDA_CUDA_OPERATORS(library) {
  add_arithmetic(library);
  add_bits(library);
  RUDA_COMPARISON(eq);
  RUDA_COMPARISON(ne);
  RUDA_COMPARISON(lt);
  RUDA_COMPARISON(le);
  RUDA_COMPARISON(gt);
  RUDA_COMPARISON(ge);
  RUDA_LOGICAL(and);
  RUDA_LOGICAL(or);
  RUDA_LOGICAL(xor);
}

}  // namespace

}  // namespace ruda_torch::cuda
