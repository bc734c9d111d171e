// Pointwise operators of two tensors, or of a tensor and a number; on the host target of one dtype.

#include "stub_route.h"

#include <ATen/native/BinaryOps.h>
#include <ATen/native/Pow.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/bitwise_and_native.h>
#include <ATen/ops/bitwise_or_native.h>
#include <ATen/ops/bitwise_xor_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/le_native.h>
#include <ATen/ops/lt_native.h>
#include <ATen/ops/maximum_native.h>
#include <ATen/ops/minimum_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/ne_native.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/sigmoid_backward_native.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/tanh_backward_native.h>
#include <torch/library.h>

namespace ruda_torch::stub {

namespace {

namespace native = at::native;

bool any_type(c10::ScalarType) { return true; }

// Quotients and powers of integers have other dtypes or checks of their own.
bool floats(c10::ScalarType type) { return c10::isFloatingType(type); }

// ---- results of the operands' dtype -------------------------------------------------------------

// ATen refuses to subtract a bool, and a number that was converted no longer shows that it was one.
template <class Names>
bool may_subtract(const Tensor& a, const Tensor& b) {
  return !Names::kSubtraction || (a.scalar_type() != at::kBool && b.scalar_type() != at::kBool);
}

// Extra: arguments after the two tensors (`alpha`).
template <class Structured, class Names, bool (*type_fits)(c10::ScalarType), class... Extra>
struct Binary {
  static Tensor fresh(const Tensor& a, const Tensor& b, Extra... extra) {
    if (on_cuda()) return make<Structured>(a, b, extra...);
    const Pair pair(a, b, Names::kNumbers);
    if (pair.fits() && type_fits(pair.type()) && may_subtract<Names>(a, b)) {
      return make<Structured>(*pair.left, *pair.right, extra...);
    }
    return boxed<Names::kFresh, Names::kNumbers>()
        .template call<Tensor, const Tensor&, const Tensor&, Extra...>(a, b, extra...);
  }

  static Tensor& in_place(Tensor& self, const Tensor& b, Extra... extra) {
    if (on_cuda()) return write<Structured>(self, self, b, extra...);
    if (on_ruda(self) && type_fits(self.scalar_type()) && may_subtract<Names>(self, b)) {
      const Tensor* right = operand(b, self.scalar_type());
      if (right != nullptr) return write<Structured>(self, self, *right, extra...);
    }
    return boxed<Names::kInPlace>().template call<Tensor&, Tensor&, const Tensor&, Extra...>(
        self, b, extra...);
  }

  static Tensor& out(const Tensor& a, const Tensor& b, Extra... extra, Tensor& result) {
    if (on_cuda()) return write<Structured>(result, a, b, extra...);
    const Pair pair(a, b, Names::kNumbers);
    if (pair.fits() && type_fits(pair.type()) && may_subtract<Names>(a, b) &&
        is(result, pair.type())) {
      return write<Structured>(result, *pair.left, *pair.right, extra...);
    }
    return boxed<Names::kOut, Names::kNumbers>()
        .template call<Tensor&, const Tensor&, const Tensor&, Extra..., Tensor&>(a, b, extra...,
                                                                                result);
  }

  static void add_to(torch::Library& library) {
    library.impl(Names::kFresh, TORCH_FN(fresh));
    library.impl(Names::kOut, TORCH_FN(out));
    if constexpr (Names::kHasInPlace) library.impl(Names::kInPlace, TORCH_FN(in_place));
  }
};

struct WithNumbers {
  static constexpr bool kSubtraction = false;
  static constexpr bool kNumbers = true;
  static constexpr bool kHasInPlace = true;
};

#define RUDA_BINARY(id, fresh, in_place, out, structured, type_fits, ...)  \
  struct Names_##id : WithNumbers {                                        \
    static constexpr char kFresh[] = "aten::" fresh;                       \
    static constexpr char kInPlace[] = "aten::" in_place;                  \
    static constexpr char kOut[] = "aten::" out;                           \
  };                                                                       \
  using Binary_##id =                                                      \
      Binary<native::structured, Names_##id, &type_fits __VA_OPT__(, ) __VA_ARGS__>;

RUDA_BINARY(add, "add.Tensor", "add_.Tensor", "add.out", structured_ufunc_add_CPU, any_type,
            const Scalar&)
RUDA_BINARY(mul, "mul.Tensor", "mul_.Tensor", "mul.out", structured_mul_out, any_type)
RUDA_BINARY(div, "div.Tensor", "div_.Tensor", "div.out", structured_div_out, floats)
RUDA_BINARY(bitwise_and, "bitwise_and.Tensor", "bitwise_and_.Tensor", "bitwise_and.Tensor_out",
            structured_bitwise_and_out, any_type)
RUDA_BINARY(bitwise_or, "bitwise_or.Tensor", "bitwise_or_.Tensor", "bitwise_or.Tensor_out",
            structured_bitwise_or_out, any_type)
RUDA_BINARY(bitwise_xor, "bitwise_xor.Tensor", "bitwise_xor_.Tensor", "bitwise_xor.Tensor_out",
            structured_bitwise_xor_out, any_type)
RUDA_BINARY(pow, "pow.Tensor_Tensor", "pow_.Tensor", "pow.Tensor_Tensor_out",
            structured_pow_Tensor_Tensor_out, floats)

#undef RUDA_BINARY

struct Names_sub : WithNumbers {
  static constexpr bool kSubtraction = true;
  static constexpr char kFresh[] = "aten::sub.Tensor";
  static constexpr char kInPlace[] = "aten::sub_.Tensor";
  static constexpr char kOut[] = "aten::sub.out";
};
using Binary_sub = Binary<native::structured_sub_out, Names_sub, &any_type, const Scalar&>;

#define RUDA_BINARY_PURE(name, numbers, out, type_fits)                    \
  struct Names_##name {                                                    \
    static constexpr bool kSubtraction = false;                            \
    static constexpr bool kNumbers = numbers;                              \
    static constexpr bool kHasInPlace = false;                             \
    static constexpr char kFresh[] = "aten::" #name;                       \
    static constexpr char kInPlace[] = "";                                 \
    static constexpr char kOut[] = "aten::" #name "." out;                 \
  };                                                                       \
  using Binary_##name = Binary<native::structured_##name##_out, Names_##name, &type_fits>;

RUDA_BINARY_PURE(maximum, true, "out", any_type)
RUDA_BINARY_PURE(minimum, true, "out", any_type)
RUDA_BINARY_PURE(sigmoid_backward, false, "grad_input", floats)
RUDA_BINARY_PURE(tanh_backward, false, "grad_input", floats)

#undef RUDA_BINARY_PURE

// ---- comparisons --------------------------------------------------------------------------------

template <class Structured, class WithNumber, class Names>
struct Comparison {
  static Tensor fresh(const Tensor& a, const Tensor& b) {
    if (on_cuda()) return make<Structured>(a, b);
    const Pair pair(a, b);
    if (pair.fits()) return make<Structured>(*pair.left, *pair.right);
    return boxed<Names::kTensor>().template call<Tensor, const Tensor&, const Tensor&>(a, b);
  }

  static Tensor& out(const Tensor& a, const Tensor& b, Tensor& result) {
    if (on_cuda()) return write<Structured>(result, a, b);
    const Pair pair(a, b);
    if (pair.fits() && is(result, at::kBool)) {
      return write<Structured>(result, *pair.left, *pair.right);
    }
    return boxed<Names::kTensorOut>()
        .template call<Tensor&, const Tensor&, const Tensor&, Tensor&>(a, b, result);
  }

  static Tensor with_number(const Tensor& self, const Scalar& value) {
    if (on_cuda()) return make<WithNumber>(self, value);
    if (on_ruda(self)) {
      const Tensor* right = number(value, self.scalar_type());
      if (right != nullptr) return make<Structured>(self, *right);
    }
    return boxed<Names::kScalar>().template call<Tensor, const Tensor&, const Scalar&>(self,
                                                                                       value);
  }

  static void add_to(torch::Library& library) {
    library.impl(Names::kTensor, TORCH_FN(fresh));
    library.impl(Names::kTensorOut, TORCH_FN(out));
    library.impl(Names::kScalar, TORCH_FN(with_number));
  }
};

#define RUDA_COMPARISON(name)                                               \
  struct Names_##name {                                                     \
    static constexpr char kTensor[] = "aten::" #name ".Tensor";             \
    static constexpr char kTensorOut[] = "aten::" #name ".Tensor_out";      \
    static constexpr char kScalar[] = "aten::" #name ".Scalar";             \
  };                                                                        \
  using Comparison_##name =                                                 \
      Comparison<native::structured_##name##_Tensor_out,                    \
                 native::structured_##name##_Scalar_out, Names_##name>;

RUDA_COMPARISON(eq)
RUDA_COMPARISON(ne)
RUDA_COMPARISON(lt)
RUDA_COMPARISON(le)
RUDA_COMPARISON(gt)
RUDA_COMPARISON(ge)

#undef RUDA_COMPARISON

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  use_elementwise_kernels<native::add_stub, native::mul_stub, native::div_true_stub,
                  native::bitwise_and_stub, native::bitwise_or_stub, native::bitwise_xor_stub,
                  native::maximum_stub, native::minimum_stub, native::pow_tensor_tensor_stub,
                  native::sigmoid_backward_stub, native::tanh_backward_stub, native::eq_stub,
                  native::ne_stub, native::lt_stub, native::le_stub, native::gt_stub,
                  native::ge_stub>();
  Binary_add::add_to(library);
  Binary_sub::add_to(library);
  Binary_mul::add_to(library);
  Binary_div::add_to(library);
  Binary_bitwise_and::add_to(library);
  Binary_bitwise_or::add_to(library);
  Binary_bitwise_xor::add_to(library);
  Binary_pow::add_to(library);
  Binary_maximum::add_to(library);
  Binary_minimum::add_to(library);
  Binary_sigmoid_backward::add_to(library);
  Binary_tanh_backward::add_to(library);
  Comparison_eq::add_to(library);
  Comparison_ne::add_to(library);
  Comparison_lt::add_to(library);
  Comparison_le::add_to(library);
  Comparison_gt::add_to(library);
  Comparison_ge::add_to(library);
}

}  // namespace

}  // namespace ruda_torch::stub
