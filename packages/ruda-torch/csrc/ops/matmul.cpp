// Matrix products through ruda-blas ("gemm.matmul"), which takes any strides.
//
// The rule: float32, float16 and bfloat16 go to ruda-blas when both operands have that dtype and
// fit. It multiplies half types in float32 panels, where ATen's products of half types run at a
// fraction of the float32 rate; the exception is bfloat16 on CPUs with instructions for it
// (AVX512-BF16), where ATen's is the faster one for products of 2^24 multiplications and more.
// Everything else, errors included, is ATen's through the boxed kernel on the host target, and goes to
// cuda/matmul.cpp on the cuda target.

#include "boxed.h"
#include "host_call.h"
#include "native_launch.h"

#include "../allocator.h"
#include "../runtime.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ruda/blas.h>
#include <torch/library.h>

namespace ruda_torch {

namespace {

using at::Scalar;
using at::Tensor;

const Kernel kGemm("gemm.matmul", ruda::gemm_args_layout);

bool plain(const Tensor& tensor, int64_t dim) {
  return tensor.is_privateuseone() && tensor.dim() == dim && tensor.layout() == c10::kStrided &&
         !tensor.is_neg();
}

// ATen has bfloat16 instructions to use, and enough work to gain by them.
bool better_in_aten(const Tensor& a, const Tensor& b) {
#if defined(__x86_64__)
  static const bool native = __builtin_cpu_supports("avx512bf16") != 0;
  constexpr double kEnough = 1 << 24;
  return native && !on_cuda() && a.scalar_type() == at::kBFloat16 &&
         static_cast<double>(a.numel()) * static_cast<double>(b.size(-1)) >= kEnough;
#else
  return false;
#endif
}

// [M, K] @ [K, N] or the same with one batch dimension, in a dtype of ruda-blas.
bool fits(const Tensor& a, const Tensor& b, int64_t dim) {
  const auto type = a.scalar_type();
  return plain(a, dim) && plain(b, dim) && b.scalar_type() == type &&
         (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) &&
         a.size(-1) == b.size(-2) && a.size(-1) != 0 && a.size(-2) != 0 && b.size(-1) != 0 &&
         (dim == 2 || (a.size(0) == b.size(0) && a.size(0) != 0)) && !better_in_aten(a, b);
}

std::array<int64_t, 3> product_sizes(const Tensor& a, const Tensor& b) {
  return {a.dim() == 3 ? a.size(0) : 1, a.size(-2), b.size(-1)};
}

bool has_product_sizes(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (out.dim() != a.dim() || out.size(-2) != a.size(-2) || out.size(-1) != b.size(-1)) {
    return false;
  }
  return a.dim() == 2 || out.size(0) == a.size(0);
}

// A tensor of the product's sizes and dtype: it takes the result without being resized.
bool takes_product(const Tensor& out, const Tensor& a, const Tensor& b) {
  return plain(out, a.dim()) && out.scalar_type() == a.scalar_type() &&
         has_product_sizes(out, a, b);
}

// It can be written while the operands are read, element by element.
bool apart(const Tensor& out, const Tensor& a, const Tensor& b) {
  return out.is_non_overlapping_and_dense() && !out.is_alias_of(a) && !out.is_alias_of(b);
}

Tensor new_product(const Tensor& a, const Tensor& b) {
  const auto sizes = product_sizes(a, b);
  const at::IntArrayRef shape(sizes.data() + (a.dim() == 3 ? 0 : 1), a.dim());
  return at::detail::empty_generic(shape, ruda_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   a.scalar_type(), std::nullopt);
}

// out = alpha * a @ b + beta * out (+ bias)
void gemm(const Tensor& a, const Tensor& b, const Tensor* bias, const Tensor& out, double alpha,
          double beta) {
  const ruda_view left = view_of(a, "aten::mm");
  const ruda_view right = view_of(b, "aten::mm");
  out.mutable_data_ptr();  // a lazy clone gets memory of its own
  const ruda_view result = view_of(out, "aten::mm");
  ruda_view added;
  if (bias != nullptr) added = view_of(*bias, "aten::addmm");
  const ruda::gemm_args args{&left, &right, bias != nullptr ? &added : nullptr, &result, alpha,
                             beta, ruda::GEMM_AUTO};
  kGemm.launch(&args);
}

void product_into(const Tensor& a, const Tensor& b, Tensor& out) {
  if (apart(out, a, b)) {
    gemm(a, b, nullptr, out, 1.0, 0.0);
    return;
  }
  const Tensor product = new_product(a, b);
  gemm(a, b, nullptr, product, 1.0, 0.0);
  out.copy_(product);
}

// ---- mm, bmm ------------------------------------------------------------------------------------

Tensor mm(const Tensor& a, const Tensor& b) {
  static const BoxedOperator rest("aten::mm");
  if (!fits(a, b, 2)) return rest.call<Tensor, const Tensor&, const Tensor&>(a, b);
  Tensor out = new_product(a, b);
  gemm(a, b, nullptr, out, 1.0, 0.0);
  return out;
}

Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  static const BoxedOperator rest("aten::mm.out");
  if (!fits(a, b, 2) || !takes_product(out, a, b)) {
    return rest.call<Tensor&, const Tensor&, const Tensor&, Tensor&>(a, b, out);
  }
  product_into(a, b, out);
  return out;
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  static const BoxedOperator rest("aten::bmm");
  if (!fits(a, b, 3)) return rest.call<Tensor, const Tensor&, const Tensor&>(a, b);
  Tensor out = new_product(a, b);
  gemm(a, b, nullptr, out, 1.0, 0.0);
  return out;
}

Tensor& bmm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  static const BoxedOperator rest("aten::bmm.out");
  if (!fits(a, b, 3) || !takes_product(out, a, b)) {
    return rest.call<Tensor&, const Tensor&, const Tensor&, Tensor&>(a, b, out);
  }
  product_into(a, b, out);
  return out;
}

// ---- addmm, baddbmm -----------------------------------------------------------------------------

bool is_real(const Scalar& value) { return !value.isComplex(); }

// `self` can be expanded to the product's sizes.
bool expands(const Tensor& self, const Tensor& a, const Tensor& b) {
  if (!self.is_privateuseone() || self.is_neg() || self.layout() != c10::kStrided ||
      self.scalar_type() != a.scalar_type() || self.dim() > a.dim()) {
    return false;
  }
  const auto sizes = product_sizes(a, b);
  for (int64_t i = 1; i <= self.dim(); ++i) {
    if (self.size(-i) != 1 && self.size(-i) != sizes[3 - i]) return false;
  }
  return true;
}

bool affine_fits(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                 const Scalar& alpha, int64_t dim) {
  return fits(a, b, dim) && is_real(beta) && is_real(alpha) && expands(self, a, b);
}

// out = beta * self + alpha * a @ b; `out` may be `self`.
void affine(const Tensor& self, const Tensor& a, const Tensor& b, double beta, double alpha,
            Tensor& out) {
  if (!apart(out, a, b) || (out.is_alias_of(self) && !out.is_same(self))) {
    Tensor separate = new_product(a, b);
    affine(self, a, b, beta, alpha, separate);
    out.copy_(separate);
    return;
  }
  if (beta == 1.0 && self.dim() == 1 && self.size(0) == b.size(-1)) {
    gemm(a, b, &self, out, alpha, 0.0);
    return;
  }
  if (beta != 0.0 && !out.is_same(self)) out.copy_(self.expand(out.sizes()));
  gemm(a, b, nullptr, out, alpha, beta);
}

Tensor affine_new(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha) {
  Tensor out = new_product(a, b);
  affine(self, a, b, beta.toDouble(), alpha.toDouble(), out);
  return out;
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  static const BoxedOperator rest("aten::addmm");
  if (!affine_fits(self, a, b, beta, alpha, 2)) {
    return rest.call<Tensor, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                     const Scalar&>(self, a, b, beta, alpha);
  }
  return affine_new(self, a, b, beta, alpha);
}

Tensor& addmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  static const BoxedOperator rest("aten::addmm_");
  if (!affine_fits(self, a, b, beta, alpha, 2) || !takes_product(self, a, b)) {
    return rest.call<Tensor&, Tensor&, const Tensor&, const Tensor&, const Scalar&,
                     const Scalar&>(self, a, b, beta, alpha);
  }
  affine(self, a, b, beta.toDouble(), alpha.toDouble(), self);
  return self;
}

Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  static const BoxedOperator rest("aten::addmm.out");
  if (!affine_fits(self, a, b, beta, alpha, 2) || !takes_product(out, a, b)) {
    return rest.call<Tensor&, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                     const Scalar&, Tensor&>(self, a, b, beta, alpha, out);
  }
  affine(self, a, b, beta.toDouble(), alpha.toDouble(), out);
  return out;
}

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  static const BoxedOperator rest("aten::baddbmm");
  if (!affine_fits(self, a, b, beta, alpha, 3)) {
    return rest.call<Tensor, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                     const Scalar&>(self, a, b, beta, alpha);
  }
  return affine_new(self, a, b, beta, alpha);
}

Tensor& baddbmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                 const Scalar& alpha) {
  static const BoxedOperator rest("aten::baddbmm_");
  if (!affine_fits(self, a, b, beta, alpha, 3) || !takes_product(self, a, b)) {
    return rest.call<Tensor&, Tensor&, const Tensor&, const Tensor&, const Scalar&,
                     const Scalar&>(self, a, b, beta, alpha);
  }
  affine(self, a, b, beta.toDouble(), alpha.toDouble(), self);
  return self;
}

Tensor& baddbmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                    const Scalar& alpha, Tensor& out) {
  static const BoxedOperator rest("aten::baddbmm.out");
  if (!affine_fits(self, a, b, beta, alpha, 3) || !takes_product(out, a, b)) {
    return rest.call<Tensor&, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                     const Scalar&, Tensor&>(self, a, b, beta, alpha, out);
  }
  affine(self, a, b, beta.toDouble(), alpha.toDouble(), out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("mm", TORCH_FN(mm));
  library.impl("mm.out", TORCH_FN(mm_out));
  library.impl("bmm", TORCH_FN(bmm));
  library.impl("bmm.out", TORCH_FN(bmm_out));
  library.impl("addmm", TORCH_FN(addmm));
  library.impl("addmm_", TORCH_FN(addmm_));
  library.impl("addmm.out", TORCH_FN(addmm_out));
  library.impl("baddbmm", TORCH_FN(baddbmm));
  library.impl("baddbmm_", TORCH_FN(baddbmm_));
  library.impl("baddbmm.out", TORCH_FN(baddbmm_out));
}

}  // namespace

}  // namespace ruda_torch
