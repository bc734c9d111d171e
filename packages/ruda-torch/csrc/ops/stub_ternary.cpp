// Pointwise operators with more than two operands or with numbers of their own: addcmul, addcdiv,
// lerp, where, clamp, powers with a constant exponent, relu and its gradient. gelu is not here: on CPU
// tensors ATen may compute it with oneDNN, whose results differ in the last bits.

#include "stub_route.h"

#include <ATen/native/Activation.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/Pow.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/addcdiv_native.h>
#include <ATen/ops/addcmul_native.h>
#include <ATen/ops/clamp_max_native.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/clamp_native.h>
#include <ATen/ops/lerp_native.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/threshold_backward_native.h>
#include <torch/library.h>

namespace ruda_torch::stub {

namespace {

namespace native = at::native;

// On the host target; device kernels take any.
bool same_floats(const Tensor& a, const Tensor& b) {
  return on_cuda() || (on_ruda(a) && is_floating(a) && is(b, a.scalar_type()));
}

bool is_real(const Scalar& value) { return !value.isComplex() && !value.isSymbolic(); }

bool is_real(const std::optional<Scalar>& value) { return !value.has_value() || is_real(*value); }

// ---- addcmul, addcdiv: three tensors and a factor -----------------------------------------------

template <class Structured, class Names>
struct Product {
  static bool fits(const Tensor& self, const Tensor& a, const Tensor& b) {
    return on_cuda() || (same_floats(self, a) && is(b, self.scalar_type()));
  }

  static Tensor fresh(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
    if (fits(self, a, b)) return make<Structured>(self, a, b, value);
    return boxed<Names::kFresh>()
        .template call<Tensor, const Tensor&, const Tensor&, const Tensor&, const Scalar&>(
            self, a, b, value);
  }

  static Tensor& in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
    if (fits(self, a, b)) return write<Structured>(self, self, a, b, value);
    return boxed<Names::kInPlace>()
        .template call<Tensor&, Tensor&, const Tensor&, const Tensor&, const Scalar&>(self, a, b,
                                                                                     value);
  }

  static Tensor& out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value,
                     Tensor& result) {
    if (fits(self, a, b) && (on_cuda() || is(result, self.scalar_type()))) {
      return write<Structured>(result, self, a, b, value);
    }
    return boxed<Names::kOut>()
        .template call<Tensor&, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                       Tensor&>(self, a, b, value, result);
  }
};

struct NamesAddcmul {
  static constexpr char kFresh[] = "aten::addcmul";
  static constexpr char kInPlace[] = "aten::addcmul_";
  static constexpr char kOut[] = "aten::addcmul.out";
};
struct NamesAddcdiv {
  static constexpr char kFresh[] = "aten::addcdiv";
  static constexpr char kInPlace[] = "aten::addcdiv_";
  static constexpr char kOut[] = "aten::addcdiv.out";
};
using Addcmul = Product<native::structured_addcmul_out, NamesAddcmul>;
using Addcdiv = Product<native::structured_addcdiv_out, NamesAddcdiv>;

// ---- lerp ---------------------------------------------------------------------------------------

constexpr char kLerp[] = "aten::lerp.Scalar";
constexpr char kLerpInPlace[] = "aten::lerp_.Scalar";

Tensor lerp(const Tensor& self, const Tensor& end, const Scalar& weight) {
  if (same_floats(self, end) && is_real(weight)) {
    return make<native::structured_lerp_Scalar>(self, end, weight);
  }
  return boxed<kLerp>().call<Tensor, const Tensor&, const Tensor&, const Scalar&>(self, end,
                                                                                 weight);
}

Tensor& lerp_(Tensor& self, const Tensor& end, const Scalar& weight) {
  if (same_floats(self, end) && is_real(weight)) {
    return write<native::structured_lerp_Scalar>(self, self, end, weight);
  }
  return boxed<kLerpInPlace>().call<Tensor&, Tensor&, const Tensor&, const Scalar&>(self, end,
                                                                                   weight);
}

// ---- where --------------------------------------------------------------------------------------

constexpr char kWhere[] = "aten::where.self";

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const Pair pair(self, other);
  if (on_cuda() || !is(condition, at::kBool) || !pair.fits()) {
    return boxed<kWhere>().call<Tensor, const Tensor&, const Tensor&, const Tensor&>(condition,
                                                                                    self, other);
  }
  begin();
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .check_all_same_dtype(false)
                                    .allow_cpu_scalars(true)
                                    .declare_static_dtype(pair.type())
                                    .add_owned_output(Tensor())
                                    .add_const_input(condition)
                                    .add_const_input(*pair.left)
                                    .add_const_input(*pair.right)
                                    .build();
  native::where_kernel(c10::kCPU, iterator);
  return iterator.output();
}

// ---- clamp --------------------------------------------------------------------------------------

constexpr char kClamp[] = "aten::clamp";
constexpr char kClampInPlace[] = "aten::clamp_";
constexpr char kClampMin[] = "aten::clamp_min";
constexpr char kClampMinInPlace[] = "aten::clamp_min_";
constexpr char kRelu[] = "aten::relu";
constexpr char kReluInPlace[] = "aten::relu_";

using Bound = const std::optional<Scalar>&;

at::OptionalScalarRef reference(Bound bound) {
  return bound.has_value() ? at::OptionalScalarRef(&*bound) : at::OptionalScalarRef();
}

bool clamp_fits(const Tensor& self, Bound min, Bound max) {
  return (on_cuda() || (on_ruda(self) && is_floating(self))) && is_real(min) && is_real(max);
}

Tensor clamp(const Tensor& self, Bound min, Bound max) {
  if (clamp_fits(self, min, max)) {
    return make<native::structured_clamp_out>(self, reference(min), reference(max));
  }
  return boxed<kClamp>().call<Tensor, const Tensor&, Bound, Bound>(self, min, max);
}

Tensor& clamp_(Tensor& self, Bound min, Bound max) {
  if (clamp_fits(self, min, max)) {
    return write<native::structured_clamp_out>(self, self, reference(min), reference(max));
  }
  return boxed<kClampInPlace>().call<Tensor&, Tensor&, Bound, Bound>(self, min, max);
}

Tensor clamp_min(const Tensor& self, const Scalar& min) {
  if (clamp_fits(self, min, std::nullopt)) {
    return make<native::structured_clamp_min_out>(self, min);
  }
  return boxed<kClampMin>().call<Tensor, const Tensor&, const Scalar&>(self, min);
}

Tensor& clamp_min_(Tensor& self, const Scalar& min) {
  if (clamp_fits(self, min, std::nullopt)) {
    return write<native::structured_clamp_min_out>(self, self, min);
  }
  return boxed<kClampMinInPlace>().call<Tensor&, Tensor&, const Scalar&>(self, min);
}

bool relu_fits(const Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "Boolean inputs not supported for relu");
  return clamp_fits(self, std::nullopt, std::nullopt);
}

Tensor relu(const Tensor& self) {
  if (relu_fits(self)) {
    return make<native::structured_clamp_min_out>(self, Scalar(0));
  }
  return boxed<kRelu>().call<Tensor, const Tensor&>(self);
}

Tensor& relu_(Tensor& self) {
  if (relu_fits(self)) {
    return write<native::structured_clamp_min_out>(self, self, Scalar(0));
  }
  return boxed<kReluInPlace>().call<Tensor&, Tensor&>(self);
}

// ---- powers -------------------------------------------------------------------------------------

constexpr char kPow[] = "aten::pow.Tensor_Scalar";
constexpr char kPowInPlace[] = "aten::pow_.Scalar";

bool pow_fits(const Tensor& self, const Scalar& value) {
  return (on_cuda() || (on_ruda(self) && is_floating(self))) && is_real(value);
}

Tensor pow(const Tensor& self, const Scalar& exponent) {
  if (pow_fits(self, exponent)) {
    return make<native::structured_pow_Tensor_Scalar_out>(self, exponent);
  }
  return boxed<kPow>().call<Tensor, const Tensor&, const Scalar&>(self, exponent);
}

Tensor& pow_(Tensor& self, const Scalar& exponent) {
  if (pow_fits(self, exponent)) {
    return write<native::structured_pow_Tensor_Scalar_out>(self, self, exponent);
  }
  return boxed<kPowInPlace>().call<Tensor&, Tensor&, const Scalar&>(self, exponent);
}

// ---- relu's gradient ----------------------------------------------------------------------------

constexpr char kThresholdBackward[] = "aten::threshold_backward";

Tensor threshold_backward(const Tensor& grad, const Tensor& self, const Scalar& threshold) {
  if (same_floats(grad, self) && is_real(threshold)) {
    return make<native::structured_threshold_backward_out>(grad, self, threshold);
  }
  return boxed<kThresholdBackward, false>()
      .call<Tensor, const Tensor&, const Tensor&, const Scalar&>(grad, self, threshold);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  use_elementwise_kernels<native::addcmul_stub, native::addcdiv_stub, native::lerp_kernel_scalar_weight,
                  native::clamp_scalar_stub, native::clamp_min_scalar_stub,
                  native::clamp_max_scalar_stub, native::pow_tensor_scalar_stub,
                  native::threshold_stub>();
  library.impl(NamesAddcmul::kFresh, TORCH_FN(Addcmul::fresh));
  library.impl(NamesAddcmul::kInPlace, TORCH_FN(Addcmul::in_place));
  library.impl(NamesAddcmul::kOut, TORCH_FN(Addcmul::out));
  library.impl(NamesAddcdiv::kFresh, TORCH_FN(Addcdiv::fresh));
  library.impl(NamesAddcdiv::kInPlace, TORCH_FN(Addcdiv::in_place));
  library.impl(NamesAddcdiv::kOut, TORCH_FN(Addcdiv::out));
  library.impl(kLerp, TORCH_FN(lerp));
  library.impl(kLerpInPlace, TORCH_FN(lerp_));
  library.impl(kWhere, TORCH_FN(where));
  library.impl(kClamp, TORCH_FN(clamp));
  library.impl(kClampInPlace, TORCH_FN(clamp_));
  library.impl(kClampMin, TORCH_FN(clamp_min));
  library.impl(kClampMinInPlace, TORCH_FN(clamp_min_));
  library.impl(kRelu, TORCH_FN(relu));
  library.impl(kReluInPlace, TORCH_FN(relu_));
  library.impl(kPow, TORCH_FN(pow));
  library.impl(kPowInPlace, TORCH_FN(pow_));
  library.impl(kThresholdBackward, TORCH_FN(threshold_backward));
}

}  // namespace

}  // namespace ruda_torch::stub
