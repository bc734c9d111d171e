// Matrix products on the cuda target that ops/matmul.cpp does not launch at once: wrong arguments
// (ATen's own errors, by its shape rules on the meta device), empty operands, negative views,
// results of other sizes; and the products of vectors.

#include "cuda/operators.h"
#include "ops/host_call.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/addmv_meta_dispatch.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/zeros.h>

#include <initializer_list>

namespace ruda_torch {

namespace {

using at::Scalar;
using at::Tensor;

// Sizes, strides and dtype without values.
Tensor outline(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// One dtype, of those that ruda-blas multiplies.
void check_dtypes(const char* operation, std::initializer_list<const Tensor*> operands) {
  const Tensor& first = **operands.begin();
  const auto type = first.scalar_type();
  for (const Tensor* operand : operands) {
    TORCH_CHECK(operand->scalar_type() == type, "[", operation, "] expected all operands to have "
                "the same dtype, but got: ", type, " != ", operand->scalar_type());
  }
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) {
    refuse_on_cuda(operation, first);
  }
}

// out takes the sizes of `shape`, as from any operator of ATen.
void write(Tensor& out, const Tensor& shape, const Tensor& result) {
  at::native::resize_output(out, shape.sizes());
  out.copy_(result);
}

// ---- mm, bmm ------------------------------------------------------------------------------------

using Product = Tensor (*)(const Tensor&, const Tensor&);
using ProductInto = Tensor& (*)(Tensor&, const Tensor&, const Tensor&);

Tensor product(const char* operation, Product meta, Product multiply, const Tensor& a,
               const Tensor& b) {
  require_ruda(operation, {{"self", a}, {"mat2", b}});
  const Tensor shape = meta(outline(a), outline(b));
  check_dtypes(operation, {&a, &b});
  if (a.is_neg() || b.is_neg()) return multiply(a.resolve_neg(), b.resolve_neg());
  return at::zeros(shape.sizes(), a.options());  // one of the sizes is 0
}

Tensor& product_into(const char* operation, ProductInto meta, Product multiply, const Tensor& a,
                     const Tensor& b, Tensor& out) {
  require_ruda(operation, {{"self", a}, {"mat2", b}, {"out", out}});
  Tensor shape = outline(out);
  meta(shape, outline(a), outline(b));
  check_dtypes(operation, {&a, &b});
  write(out, shape, multiply(a, b));
  return out;
}

Tensor mm(const Tensor& a, const Tensor& b) {
  return product("aten::mm", &at::meta::mm, &at::mm, a, b);
}
Tensor& mm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  return product_into("aten::mm.out", &at::meta::mm_out, &at::mm, a, b, out);
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  return product("aten::bmm", &at::meta::bmm, &at::bmm, a, b);
}
Tensor& bmm_out(const Tensor& a, const Tensor& b, Tensor& out) {
  return product_into("aten::bmm.out", &at::meta::bmm_out, &at::bmm, a, b, out);
}

// ---- addmm, baddbmm, addmv ----------------------------------------------------------------------

using Affine = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                          const Scalar&);
using AffineInto = Tensor& (*)(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                               const Scalar&);

void check_affine(const char* operation, const Tensor& self, const Tensor& a, const Tensor& b,
                  const Scalar& beta, const Scalar& alpha) {
  check_dtypes(operation, {&a, &b, &self});
  TORCH_CHECK_TYPE(!beta.isComplex() && !alpha.isComplex(), "[", operation, "] got a complex alpha "
                   "or beta, wanted real ones for ", a.scalar_type());
}

// beta * self, without a look at it where beta is 0.
Tensor scaled(const Tensor& self, const Scalar& beta, at::IntArrayRef sizes) {
  if (beta.toDouble() == 0.0) return at::zeros(sizes, self.options());
  return at::mul(self, beta).expand(sizes);
}

Tensor affine(const char* operation, Affine meta, Affine multiply, const Tensor& self,
              const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  require_ruda(operation, {{"self", self}, {"mat1", a}, {"mat2", b}});
  const Tensor shape = meta(outline(self), outline(a), outline(b), beta, alpha);
  check_affine(operation, self, a, b, beta, alpha);
  if (self.is_neg() || a.is_neg() || b.is_neg()) {
    return multiply(self.resolve_neg(), a.resolve_neg(), b.resolve_neg(), beta, alpha);
  }
  return scaled(self, beta, shape.sizes()).contiguous();  // one of the product's sizes is 0
}

Tensor& affine_into(const char* operation, AffineInto meta, Affine multiply, const Tensor& self,
                    const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                    Tensor& out) {
  require_ruda(operation, {{"self", self}, {"mat1", a}, {"mat2", b}, {"out", out}});
  Tensor shape = outline(out);
  meta(shape, outline(self), outline(a), outline(b), beta, alpha);
  check_affine(operation, self, a, b, beta, alpha);
  write(out, shape, multiply(self, a, b, beta, alpha));
  return out;
}

Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
             const Scalar& alpha) {
  return affine("aten::addmm", &at::meta::addmm, &at::addmm, self, a, b, beta, alpha);
}
Tensor& addmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  Tensor shape = outline(self);
  at::meta::addmm_(shape, outline(a), outline(b), beta, alpha);  // refuses what would be resized
  return affine_into("aten::addmm_", &at::meta::addmm_out, &at::addmm, self, a, b, beta, alpha,
                     self);
}
Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  return affine_into("aten::addmm.out", &at::meta::addmm_out, &at::addmm, self, a, b, beta, alpha,
                     out);
}

Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
               const Scalar& alpha) {
  return affine("aten::baddbmm", &at::meta::baddbmm, &at::baddbmm, self, a, b, beta, alpha);
}
Tensor& baddbmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                 const Scalar& alpha) {
  Tensor shape = outline(self);
  at::meta::baddbmm_(shape, outline(a), outline(b), beta, alpha);
  return affine_into("aten::baddbmm_", &at::meta::baddbmm_out, &at::baddbmm, self, a, b, beta,
                     alpha, self);
}
Tensor& baddbmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                    const Scalar& alpha, Tensor& out) {
  return affine_into("aten::baddbmm.out", &at::meta::baddbmm_out, &at::baddbmm, self, a, b, beta,
                     alpha, out);
}

// ---- addbmm: the batches one behind the other in one product ------------------------------------

Tensor addbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
              const Scalar& alpha) {
  require_ruda("aten::addbmm", {{"self", self}, {"batch1", a}, {"batch2", b}});
  TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
              "[aten::addbmm] size mismatch: got shapes ", a.sizes(), " and ", b.sizes(),
              ", wanted [B, M, K] and [B, K, N]");
  const Tensor left = a.transpose(0, 1).reshape({a.size(1), a.size(0) * a.size(2)});
  return at::addmm(self, left, b.reshape({b.size(0) * b.size(1), b.size(2)}), beta, alpha);
}

Tensor& addbmm_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                const Scalar& alpha) {
  const Tensor result = at::addbmm(self, a, b, beta, alpha);
  TORCH_CHECK(self.sizes() == result.sizes(), "[aten::addbmm_] self: got shape ", self.sizes(),
              ", wanted the result's ", result.sizes());
  return self.copy_(result);
}

Tensor& addbmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta,
                   const Scalar& alpha, Tensor& out) {
  require_ruda("aten::addbmm.out", {{"out", out}});
  const Tensor result = at::addbmm(self, a, b, beta, alpha);
  write(out, result, result);
  return out;
}

// ---- vectors, as matrices of one column ---------------------------------------------------------

Tensor addmv(const Tensor& self, const Tensor& a, const Tensor& vector, const Scalar& beta,
             const Scalar& alpha) {
  require_ruda("aten::addmv", {{"self", self}, {"mat", a}, {"vec", vector}});
  const Tensor shape =
      at::meta::addmv(outline(self), outline(a), outline(vector), beta, alpha);
  check_affine("aten::addmv", self, a, vector, beta, alpha);
  const Tensor column = self.expand(shape.sizes()).unsqueeze(1);
  return at::addmm(column, a, vector.unsqueeze(1), beta, alpha).squeeze(1);
}

Tensor& addmv_(Tensor& self, const Tensor& a, const Tensor& vector, const Scalar& beta,
               const Scalar& alpha) {
  Tensor shape = outline(self);
  at::meta::addmv_(shape, outline(a), outline(vector), beta, alpha);
  return self.copy_(at::addmv(self, a, vector, beta, alpha));
}

Tensor& addmv_out(const Tensor& self, const Tensor& a, const Tensor& vector, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  require_ruda("aten::addmv.out", {{"out", out}});
  Tensor shape = outline(out);
  at::meta::addmv_out(shape, outline(self), outline(a), outline(vector), beta, alpha);
  write(out, shape, at::addmv(self, a, vector, beta, alpha));
  return out;
}

void check_vectors(const char* operation, int64_t matrix, const Tensor& a, const Tensor& vector) {
  require_ruda(operation, {{"self", a}, {"vec", vector}});
  TORCH_CHECK(a.dim() == matrix && vector.dim() == 1 && a.size(-1) == vector.size(0), "[",
              operation, "] size mismatch: got shapes ", a.sizes(), " and ", vector.sizes(),
              matrix == 2 ? ", wanted [M, K] and [K]" : ", wanted [K] and [K]");
  TORCH_CHECK(a.scalar_type() == vector.scalar_type(), "[", operation, "] expected both operands "
              "to have the same dtype, but got ", a.scalar_type(), " and ", vector.scalar_type());
}

Tensor mv(const Tensor& a, const Tensor& vector) {
  check_vectors("aten::mv", 2, a, vector);
  return at::mm(a, vector.unsqueeze(1)).squeeze(1);
}

Tensor& mv_out(const Tensor& a, const Tensor& vector, Tensor& out) {
  require_ruda("aten::mv.out", {{"out", out}});
  TORCH_CHECK(out.scalar_type() == a.scalar_type(), "[aten::mv.out] out: got ", out.scalar_type(),
              ", wanted ", a.scalar_type());
  const Tensor result = at::mv(a, vector);
  write(out, result, result);
  return out;
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_vectors("aten::dot", 1, a, b);
  return at::mm(a.unsqueeze(0), b.unsqueeze(1)).view(at::IntArrayRef{});
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::mm", TORCH_FN(mm));
  library.impl("aten::mm.out", TORCH_FN(mm_out));
  library.impl("aten::bmm", TORCH_FN(bmm));
  library.impl("aten::bmm.out", TORCH_FN(bmm_out));
  library.impl("aten::addmm", TORCH_FN(addmm));
  library.impl("aten::addmm_", TORCH_FN(addmm_));
  library.impl("aten::addmm.out", TORCH_FN(addmm_out));
  library.impl("aten::baddbmm", TORCH_FN(baddbmm));
  library.impl("aten::baddbmm_", TORCH_FN(baddbmm_));
  library.impl("aten::baddbmm.out", TORCH_FN(baddbmm_out));
  library.impl("aten::addbmm", TORCH_FN(addbmm));
  library.impl("aten::addbmm_", TORCH_FN(addbmm_));
  library.impl("aten::addbmm.out", TORCH_FN(addbmm_out));
  library.impl("aten::addmv", TORCH_FN(addmv));
  library.impl("aten::addmv_", TORCH_FN(addmv_));
  library.impl("aten::addmv.out", TORCH_FN(addmv_out));
  library.impl("aten::mv", TORCH_FN(mv));
  library.impl("aten::mv.out", TORCH_FN(mv_out));
  library.impl("aten::dot", TORCH_FN(dot));
  library.impl("aten::vdot", TORCH_FN(dot));  // of real vectors
}

}  // namespace ruda_torch
