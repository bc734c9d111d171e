// Pointwise operators of one tensor. Integers become floats in most of them: on the host target only
// floating inputs take this route, the rest is boxed.

#include "stub_route.h"

#include <ATen/native/Activation.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/bitwise_not_native.h>
#include <ATen/ops/ceil_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/erf_native.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/expm1_native.h>
#include <ATen/ops/floor_native.h>
#include <ATen/ops/log1p_native.h>
#include <ATen/ops/log2_native.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/reciprocal_native.h>
#include <ATen/ops/round_native.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/tanh_native.h>
#include <torch/library.h>

namespace ruda_torch::stub {

namespace {

namespace native = at::native;

bool float_fits(const Tensor& self) { return on_cuda() || (on_ruda(self) && is_floating(self)); }

bool integer_fits(const Tensor& self) {
  return on_cuda() ||
         (on_ruda(self) && c10::isIntegralType(self.scalar_type(), /*includeBool=*/true));
}

template <class Structured, class Names, bool (*fits)(const Tensor&)>
struct Unary {
  static Tensor fresh(const Tensor& self) {
    if (fits(self)) return make<Structured>(self);
    return boxed<Names::kFresh>().template call<Tensor, const Tensor&>(self);
  }

  static Tensor& in_place(Tensor& self) {
    if (fits(self)) return write<Structured>(self, self);
    return boxed<Names::kInPlace>().template call<Tensor&, Tensor&>(self);
  }

  static Tensor& out(const Tensor& self, Tensor& result) {
    if (fits(self) && (on_cuda() || is(result, self.scalar_type()))) {
      return write<Structured>(result, self);
    }
    return boxed<Names::kOut>().template call<Tensor&, const Tensor&, Tensor&>(self, result);
  }

  static void add_to(torch::Library& library) {
    library.impl(Names::kFresh, TORCH_FN(fresh));
    library.impl(Names::kInPlace, TORCH_FN(in_place));
    library.impl(Names::kOut, TORCH_FN(out));
  }
};

#define RUDA_UNARY(name, fits)                                     \
  struct Names_##name {                                            \
    static constexpr char kFresh[] = "aten::" #name;               \
    static constexpr char kInPlace[] = "aten::" #name "_";         \
    static constexpr char kOut[] = "aten::" #name ".out";          \
  };                                                               \
  using Unary_##name = Unary<native::structured_##name##_out, Names_##name, &fits>;

RUDA_UNARY(ceil, float_fits)
RUDA_UNARY(cos, float_fits)
RUDA_UNARY(erf, float_fits)
RUDA_UNARY(exp, float_fits)
RUDA_UNARY(expm1, float_fits)
RUDA_UNARY(floor, float_fits)
RUDA_UNARY(log, float_fits)
RUDA_UNARY(log1p, float_fits)
RUDA_UNARY(log2, float_fits)
RUDA_UNARY(neg, float_fits)
RUDA_UNARY(reciprocal, float_fits)
RUDA_UNARY(round, float_fits)
RUDA_UNARY(rsqrt, float_fits)
RUDA_UNARY(sigmoid, float_fits)
RUDA_UNARY(silu, float_fits)
RUDA_UNARY(sin, float_fits)
RUDA_UNARY(sqrt, float_fits)
RUDA_UNARY(tanh, float_fits)
RUDA_UNARY(bitwise_not, integer_fits)

#undef RUDA_UNARY

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  use_elementwise_kernels<native::bitwise_not_stub, native::ceil_stub, native::cos_stub, native::erf_stub,
                  native::exp_stub, native::expm1_stub, native::floor_stub, native::log_stub,
                  native::log1p_stub, native::log2_stub, native::neg_stub, native::reciprocal_stub,
                  native::round_stub, native::rsqrt_stub, native::sigmoid_stub, native::silu_stub,
                  native::sin_stub, native::sqrt_stub, native::tanh_stub>();
  Unary_bitwise_not::add_to(library);
  Unary_ceil::add_to(library);
  Unary_cos::add_to(library);
  Unary_erf::add_to(library);
  Unary_exp::add_to(library);
  Unary_expm1::add_to(library);
  Unary_floor::add_to(library);
  Unary_log::add_to(library);
  Unary_log1p::add_to(library);
  Unary_log2::add_to(library);
  Unary_neg::add_to(library);
  Unary_reciprocal::add_to(library);
  Unary_round::add_to(library);
  Unary_rsqrt::add_to(library);
  Unary_sigmoid::add_to(library);
  Unary_silu::add_to(library);
  Unary_sin::add_to(library);
  Unary_sqrt::add_to(library);
  Unary_tanh::add_to(library);
}

}  // namespace

}  // namespace ruda_torch::stub
