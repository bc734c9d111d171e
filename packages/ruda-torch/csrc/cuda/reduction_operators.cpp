// ATen's reductions on the cuda target: the functions of its kernel tables, and operators that the
// host target leaves to ATen's CPU kernels.

#include "cuda/operators.h"
#include "cuda/reduction.h"
#include "ops/stub_route.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceAllOps.h>
#include <ATen/native/ReduceOps.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/all_native.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amax_native.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/amin_native.h>
#include <ATen/ops/any_native.h>
#include <ATen/ops/argmax_native.h>
#include <ATen/ops/argmin_native.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/cumsum_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linalg_vector_norm_native.h>
#include <ATen/ops/logsumexp_native.h>
#include <ATen/ops/mean_native.h>
#include <ATen/ops/prod_native.h>
#include <ATen/ops/sum_native.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;
using at::Scalar;
using at::Tensor;
using at::TensorIterator;
using stub::make;
using stub::write;
using Dims = at::OptionalIntArrayRef;
using OptionalType = std::optional<c10::ScalarType>;

// ---- the functions of ATen's tables -------------------------------------------------------------

void sum_table(TensorIterator& iterator) {
  // A sum of bools that is to be a bool says whether one is true, and a product whether all are.
  if (iterator.dtype(0) == at::kBool) return reduce("sum", iterator, {"max", "nonzero"});
  reduce("sum", iterator, {"sum"});
}

void prod_table(TensorIterator& iterator) {
  if (iterator.dtype(0) == at::kBool) return reduce("prod", iterator, {"min", "nonzero"});
  reduce("prod", iterator, {"prod"});
}

void mean_table(TensorIterator& iterator) {
  const auto count = static_cast<double>(iterator.num_output_elements());
  const double each = static_cast<double>(iterator.numel()) / count;
  reduce("mean", iterator, {"sum", "value", "divide", each});
}

void largest_table(TensorIterator& iterator) { reduce("amax", iterator, {"max"}); }
void least_table(TensorIterator& iterator) { reduce("amin", iterator, {"min"}); }
void all_table(TensorIterator& iterator) { reduce("all", iterator, {"min", "nonzero"}); }
void any_table(TensorIterator& iterator) { reduce("any", iterator, {"max", "nonzero"}); }
void argmax_table(TensorIterator& iterator) { locate("argmax", iterator, true); }
void argmin_table(TensorIterator& iterator) { locate("argmin", iterator, false); }

void norm_table(TensorIterator& iterator, const Scalar& order) {
  const double p = order.toDouble();
  if (iterator.numel() == 0) {
    iterator.tensor(0).fill_(p < 0 ? std::numeric_limits<double>::infinity() : 0.0);
    return;
  }
  if (p == 0) return reduce("norm", iterator, {"sum", "nonzero"});
  if (p == 1) return reduce("norm", iterator, {"sum", "absolute"});
  if (p == 2) return reduce("norm", iterator, {"sum", "square", "sqrt"});
  if (std::isinf(p)) return reduce("norm", iterator, {p > 0 ? "max" : "min", "absolute"});
  reduce("norm", iterator, {"sum", "power", "root", p});
}

void cumsum_table(const Tensor& result, const Tensor& self, int64_t dim) {
  const Tensor out = result.is_contiguous() ? result : at::empty(result.sizes(), result.options());
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  cumulate("cumsum", self.contiguous(), out, axis);
  if (!out.is_same(result)) result.copy_(out);
}

// ---- operators ----------------------------------------------------------------------------------

// Whether the kernel converts the values. ATen would convert the tensor first: it leaves that to
// kernels of CUDA alone.
bool sums_as_it_is(const Tensor& self, c10::ScalarType type) {
  const auto own = self.scalar_type();
  if (own == at::kHalf || own == at::kBFloat16) return type == at::kFloat;
  return at::isIntegralType(own, /*includeBool=*/true) && type == at::kLong;
}

Tensor sum_dims(const Tensor& self, Dims dims, bool keep, OptionalType type) {
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const auto made = type.value_or(integral ? at::kLong : self.scalar_type());
  if (!sums_as_it_is(self, made)) {
    return make<native::structured_sum_out>(self, dims, keep, type);
  }
  const auto mask = native::make_dim_mask(dims, self.dim());
  Tensor result = at::empty(native::shape_from_dim_mask(self, mask, keep),
                            self.options().dtype(made));
  if (self.numel() == 0) return result.zero_();
  auto iterator = at::meta::make_reduction(self, result, dims, keep, self.scalar_type());
  reduce("sum", iterator, {"sum"});
  return result;
}
Tensor sum(const Tensor& self, OptionalType type) {
  return sum_dims(self, Dims(at::IntArrayRef{}), false, type);
}
Tensor& sum_out(const Tensor& self, Dims dims, bool keep, OptionalType type, Tensor& out) {
  return write<native::structured_sum_out>(out, self, dims, keep, type);
}

Tensor mean(const Tensor& self, OptionalType type) {
  return make<native::structured_mean_out>(self, Dims(at::IntArrayRef{}), false, type);
}
Tensor mean_dims(const Tensor& self, Dims dims, bool keep, OptionalType type) {
  return make<native::structured_mean_out>(self, dims, keep, type);
}
Tensor& mean_out(const Tensor& self, Dims dims, bool keep, OptionalType type, Tensor& out) {
  return write<native::structured_mean_out>(out, self, dims, keep, type);
}

Tensor nansum(const Tensor& self, Dims dims, bool keep, OptionalType type) {
  if (!at::isFloatingType(self.scalar_type())) return sum_dims(self, dims, keep, type);
  return sum_dims(self.masked_fill(self.isnan(), 0), dims, keep, type);
}

Tensor trace(const Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return self.diagonal().sum();
}

Tensor prod(const Tensor& self, OptionalType type) { return native::prod(self, type); }
Tensor prod_dim(const Tensor& self, int64_t dim, bool keep, OptionalType type) {
  return make<native::structured_prod_out>(self, dim, keep, type);
}

template <class Structured>
Tensor truth(const Tensor& self) {
  return make<Structured>(self);
}
template <class Structured>
Tensor truth_dim(const Tensor& self, int64_t dim, bool keep) {
  return make<Structured>(self, dim, keep);
}
template <class Structured>
Tensor truth_dims(const Tensor& self, Dims dims, bool keep) {
  return make<Structured>(self, dims, keep);
}

template <class Structured>
Tensor place(const Tensor& self, std::optional<int64_t> dim, bool keep) {
  return make<Structured>(self, dim, keep);
}
template <class Structured>
Tensor& place_out(const Tensor& self, std::optional<int64_t> dim, bool keep, Tensor& out) {
  return write<Structured>(out, self, dim, keep);
}

Tensor max_all(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "max(): Expected reduction dim to be specified for input.numel() "
              "== 0. Specify the reduction dim with the 'dim' argument.");
  return at::amax(self, {}, false);
}

Tensor min_all(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "min(): Expected reduction dim to be specified for input.numel() "
              "== 0. Specify the reduction dim with the 'dim' argument.");
  return at::amin(self, {}, false);
}

template <bool largest>
std::tuple<Tensor, Tensor> peak_dim(const Tensor& self, int64_t dim, bool keep) {
  constexpr const char* name = largest ? "max" : "min";
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  if (self.dim() == 0) {
    return {self.clone(), at::empty({}, self.options().dtype(at::kLong)).zero_()};
  }
  native::zero_numel_check_dims(self, axis, largest ? "max()" : "min()");
  auto sizes = self.sizes().vec();
  sizes.erase(sizes.begin() + axis);
  Tensor values = at::empty(sizes, self.options());
  Tensor indices = at::empty(sizes, self.options().dtype(at::kLong));
  locate(name, self, axis, largest, values, indices);
  if (keep) return {values.unsqueeze(axis), indices.unsqueeze(axis)};
  return {std::move(values), std::move(indices)};
}

template <bool largest>
std::tuple<Tensor&, Tensor&> peak_dim_out(const Tensor& self, int64_t dim, bool keep,
                                          Tensor& values, Tensor& indices) {
  auto [found, places] = peak_dim<largest>(self, dim, keep);
  native::resize_output(values, found.sizes());
  native::resize_output(indices, places.sizes());
  values.copy_(found);
  indices.copy_(places);
  return {values, indices};
}

std::tuple<Tensor, Tensor> aminmax(const Tensor& self, std::optional<int64_t> dim, bool keep) {
  if (!dim.has_value()) {
    const Tensor whole = self.reshape({-1});
    return {at::amin(whole, {0}, keep), at::amax(whole, {0}, keep)};
  }
  return {at::amin(self, {*dim}, keep), at::amax(self, {*dim}, keep)};
}

Tensor count_nonzero_dims(const Tensor& self, at::IntArrayRef dims) {
  const auto mask = native::make_dim_mask(dims, self.dim());
  Tensor result = at::empty(native::shape_from_dim_mask(self, mask, false),
                            self.options().dtype(at::kLong));
  if (self.numel() == 0) return result.zero_();
  auto iterator = at::meta::make_reduction(self, result, dims, false, self.scalar_type());
  reduce("count_nonzero", iterator, {"sum", "nonzero"});
  return result;
}

Tensor count_nonzero(const Tensor& self, std::optional<int64_t> dim) {
  return dim.has_value() ? count_nonzero_dims(self, {*dim}) : count_nonzero_dims(self, {});
}

Tensor vector_norm(const Tensor& self, const Scalar& order, Dims dims, bool keep,
                   OptionalType type) {
  return make<native::structured_linalg_vector_norm_out>(self, order, dims, keep, type);
}
Tensor& vector_norm_out(const Tensor& self, const Scalar& order, Dims dims, bool keep,
                        OptionalType type, Tensor& out) {
  return write<native::structured_linalg_vector_norm_out>(out, self, order, dims, keep, type);
}

using OptionalScalar = std::optional<Scalar>;

Tensor norm(const Tensor& self, const Scalar& p) {
  return at::linalg_vector_norm(self, p, std::nullopt, false, std::nullopt);
}
Tensor norm_dtype(const Tensor& self, const OptionalScalar& p, c10::ScalarType type) {
  return at::linalg_vector_norm(self, p.value_or(2), std::nullopt, false, type);
}
Tensor norm_dims(const Tensor& self, const OptionalScalar& p, at::IntArrayRef dims, bool keep) {
  return at::linalg_vector_norm(self, p.value_or(2), dims, keep, std::nullopt);
}
Tensor norm_dims_dtype(const Tensor& self, const OptionalScalar& p, at::IntArrayRef dims, bool keep,
                       c10::ScalarType type) {
  return at::linalg_vector_norm(self, p.value_or(2), dims, keep, type);
}

Tensor cumsum(const Tensor& self, int64_t dim, OptionalType type) {
  return make<native::structured_cumsum_out>(self, dim, type);
}
Tensor& cumsum_out(const Tensor& self, int64_t dim, OptionalType type, Tensor& out) {
  return write<native::structured_cumsum_out>(out, self, dim, type);
}
Tensor& cumsum_in_place(Tensor& self, int64_t dim, OptionalType type) {
  return write<native::structured_cumsum_out>(self, self, dim, type);
}

Tensor logsumexp(const Tensor& self, at::IntArrayRef dims, bool keep) {
  return native::logsumexp(self, dims, keep);
}

// The variance in two passes, in float32 for shorter floats, and the mean.
std::tuple<Tensor, Tensor> variance(const Tensor& self, Dims dims, const OptionalScalar& correction,
                                    bool keep, bool root) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), root ? "std" : "var",
              " and its kin: got dtype ", self.scalar_type(), ", wanted a floating dtype");
  const auto own = self.scalar_type();
  const Tensor wide = own == at::kDouble ? self : self.to(at::kFloat);
  const Tensor mean = wide.mean(dims, /*keepdim=*/true);
  const double count = static_cast<double>(self.numel()) / std::max<double>(1, mean.numel());
  const double divisor = std::max(count - correction.value_or(1).toDouble(), 0.0);
  Tensor result = wide.sub(mean).square_().sum(dims, keep).div_(divisor);
  if (root) result.sqrt_();
  Tensor middle = keep ? mean : mean.view(result.sizes());
  return {result.to(own), middle.to(own)};
}

template <bool root>
Tensor spread(const Tensor& self, Dims dims, const OptionalScalar& correction, bool keep) {
  return std::get<0>(variance(self, dims, correction, keep, root));
}
template <bool root>
std::tuple<Tensor, Tensor> spread_mean(const Tensor& self, Dims dims,
                                       const OptionalScalar& correction, bool keep) {
  return variance(self, dims, correction, keep, root);
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  stub::use_on_cuda<native::sum_stub>(&sum_table);
  stub::use_on_cuda<native::max_values_stub>(&largest_table);
  stub::use_on_cuda<native::min_values_stub>(&least_table);
  stub::use_on_cuda<native::and_stub>(&all_table);
  stub::use_on_cuda<native::or_stub>(&any_table);
  stub::use_only_on_cuda<native::mean_stub>(&mean_table);
  stub::use_only_on_cuda<native::prod_stub>(&prod_table);
  stub::use_only_on_cuda<native::argmax_stub>(&argmax_table);
  stub::use_only_on_cuda<native::argmin_stub>(&argmin_table);
  stub::use_only_on_cuda<native::norm_stub>(&norm_table);
  stub::use_only_on_cuda<native::cumsum_stub>(&cumsum_table);

  library.impl("aten::sum", TORCH_FN(sum));
  library.impl("aten::sum.dim_IntList", TORCH_FN(sum_dims));
  library.impl("aten::sum.IntList_out", TORCH_FN(sum_out));
  library.impl("aten::mean", TORCH_FN(mean));
  library.impl("aten::mean.dim", TORCH_FN(mean_dims));
  library.impl("aten::mean.out", TORCH_FN(mean_out));
  library.impl("aten::nansum", TORCH_FN(nansum));
  library.impl("aten::trace", TORCH_FN(trace));
  library.impl("aten::prod", TORCH_FN(prod));
  library.impl("aten::prod.dim_int", TORCH_FN(prod_dim));
  library.impl("aten::any", TORCH_FN(truth<native::structured_any_all_out>));
  library.impl("aten::all", TORCH_FN(truth<native::structured_all_all_out>));
  library.impl("aten::any.dim", TORCH_FN(truth_dim<native::structured_any_out>));
  library.impl("aten::all.dim", TORCH_FN(truth_dim<native::structured_all_out>));
  library.impl("aten::any.dims", TORCH_FN(truth_dims<native::structured_any_dims_out>));
  library.impl("aten::all.dims", TORCH_FN(truth_dims<native::structured_all_dims_out>));
  library.impl("aten::argmax", TORCH_FN(place<native::structured_argmax_out>));
  library.impl("aten::argmin", TORCH_FN(place<native::structured_argmin_out>));
  library.impl("aten::argmax.out", TORCH_FN(place_out<native::structured_argmax_out>));
  library.impl("aten::argmin.out", TORCH_FN(place_out<native::structured_argmin_out>));
  library.impl("aten::max", TORCH_FN(max_all));
  library.impl("aten::min", TORCH_FN(min_all));
  library.impl("aten::max.dim", TORCH_FN(peak_dim<true>));
  library.impl("aten::min.dim", TORCH_FN(peak_dim<false>));
  library.impl("aten::max.dim_max", TORCH_FN(peak_dim_out<true>));
  library.impl("aten::min.dim_min", TORCH_FN(peak_dim_out<false>));
  library.impl("aten::aminmax", TORCH_FN(aminmax));
  library.impl("aten::count_nonzero", TORCH_FN(count_nonzero));
  library.impl("aten::count_nonzero.dim_IntList", TORCH_FN(count_nonzero_dims));
  library.impl("aten::linalg_vector_norm", TORCH_FN(vector_norm));
  library.impl("aten::linalg_vector_norm.out", TORCH_FN(vector_norm_out));
  library.impl("aten::norm.Scalar", TORCH_FN(norm));
  library.impl("aten::norm.ScalarOpt_dtype", TORCH_FN(norm_dtype));
  library.impl("aten::norm.ScalarOpt_dim", TORCH_FN(norm_dims));
  library.impl("aten::norm.ScalarOpt_dim_dtype", TORCH_FN(norm_dims_dtype));
  library.impl("aten::cumsum", TORCH_FN(cumsum));
  library.impl("aten::cumsum.out", TORCH_FN(cumsum_out));
  library.impl("aten::cumsum_", TORCH_FN(cumsum_in_place));
  library.impl("aten::logsumexp", TORCH_FN(logsumexp));
  library.impl("aten::var.correction", TORCH_FN(spread<false>));
  library.impl("aten::std.correction", TORCH_FN(spread<true>));
  library.impl("aten::var_mean.correction", TORCH_FN(spread_mean<false>));
  library.impl("aten::std_mean.correction", TORCH_FN(spread_mean<true>));
}

}  // namespace ruda_torch::cuda
