// Tensors that are made or arranged by position, on the cuda target.

#include "cuda/indexing.h"
#include "cuda/operators.h"
#include "cuda/pointwise.h"
#include "ops/host_call.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ruda_torch::cuda {

namespace {

using at::Scalar;
using at::Tensor;

// The second half is counted from the end, so that both ends are what they should be. Integers are
// truncated from float64.
Tensor& linspace_out(const Scalar& start, const Scalar& end, int64_t steps, Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) at::native::resize_output(out, {steps});
  const bool whole = at::isIntegralType(out.scalar_type(), /*includeBool=*/true);
  const Tensor result = out.is_contiguous() && !whole
                            ? out
                            : at::empty({steps}, whole ? out.options().dtype(at::kDouble)
                                                       : out.options());
  const double first = whole ? static_cast<double>(start.toLong()) : start.toDouble();
  const double last = whole ? static_cast<double>(end.toLong()) : end.toDouble();
  const double step = steps > 1 ? (last - first) / static_cast<double>(steps - 1) : 0;
  const int64_t half = steps == 1 ? 1 : steps / 2;
  if (half > 0) arange(result.narrow(0, 0, half), first, step);
  if (half < steps) {
    const double middle = last - static_cast<double>(steps - 1 - half) * step;
    arange(result.narrow(0, half, steps - half), middle, step);
  }
  if (!result.is_same(out)) out.copy_(result);
  return out;
}

template <bool upper>
Tensor triangle_of(const Tensor& self, int64_t diagonal) {
  constexpr const char* name = upper ? "triu" : "tril";
  TORCH_CHECK(self.dim() >= 2, "[", name, "] got shape ", self.sizes(),
              ", wanted at least two dimensions");
  const Tensor source = self.contiguous();
  Tensor out = at::empty(self.sizes(), self.options());
  triangle(name, source, out, diagonal, upper);
  return out;
}

template <bool upper>
Tensor& triangle_in_place(Tensor& self, int64_t diagonal) {
  return self.copy_(triangle_of<upper>(self, diagonal));
}

template <bool upper>
Tensor& triangle_out(const Tensor& self, int64_t diagonal, Tensor& out) {
  const Tensor result = triangle_of<upper>(self, diagonal);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor places(const Tensor& like, int64_t begin, int64_t end, int64_t step) {
  return at::arange(begin, end, step, like.options().dtype(at::kLong));
}

Tensor flip(const Tensor& self, at::IntArrayRef dims) {
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  if (self.numel() == 0) return result;
  std::vector<bool> done(static_cast<size_t>(self.dim()));
  for (const int64_t dim : dims) {
    const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
    TORCH_CHECK(self.dim() == 0 || !done[axis], "dim ", axis,
                " appears multiple times in the list of dims");
    if (self.dim() == 0) continue;
    done[axis] = true;
    result = result.index_select(axis, places(self, self.size(axis) - 1, -1, -1));
  }
  return result;
}

Tensor rolled(const Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  if (dims.empty()) {
    TORCH_CHECK(shifts.size() == 1, "shifts and dimensions must align. shifts: ", shifts.size(),
                ", dims:0");
    return rolled(self.contiguous().view({-1}), shifts, {0}).view(self.sizes());
  }
  TORCH_CHECK(shifts.size() == dims.size(), "shifts and dimensions must align. shifts: ",
              shifts.size(), ", dims:", dims.size());
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  if (self.numel() == 0) return result;
  for (size_t each = 0; each < dims.size(); ++each) {
    const int64_t axis = at::maybe_wrap_dim(dims[each], self.dim());
    const int64_t size = self.size(axis);
    const Tensor from = places(self, 0, size, 1).sub(shifts[each]).remainder(size);
    result = result.index_select(axis, from);
  }
  return result;
}

Tensor& eye_out(int64_t rows, int64_t columns, Tensor& out) {
  TORCH_CHECK(rows >= 0 && columns >= 0, "[eye] got ", rows, " x ", columns,
              ", wanted sizes of 0 or more");
  at::native::resize_output(out, {rows, columns});
  out.zero_();
  if (rows != 0 && columns != 0) out.diagonal().fill_(1);
  return out;
}

Tensor& eye_square_out(int64_t rows, Tensor& out) { return eye_out(rows, rows, out); }

Tensor repeat(const Tensor& self, at::IntArrayRef repeats) {
  return at::native::repeat(self, repeats);
}

// The numbers 0, 1, ... each repeated as often as it says: how many of the running sums lie at or
// before a position.
Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "[repeat_interleave] repeats: got ", repeats.dim(),
              " dimensions, wanted one");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "[repeat_interleave] repeats: got dtype ", repeats.scalar_type(),
              ", wanted int64 or int32");
  if (repeats.numel() == 0) return at::empty({0}, repeats.options());
  const Tensor ends = repeats.cumsum(0, at::kLong);
  TORCH_CHECK(!repeats.lt(0).any().item<bool>(), "repeats can not be negative");
  const int64_t total = ends[-1].item<int64_t>();
  TORCH_CHECK(!output_size.has_value() || *output_size == total, "[repeat_interleave] output_size: "
              "got ", *output_size, ", wanted the sum of repeats, ", total);
  Tensor marks = at::zeros({total + 1}, ends.options());
  marks.scatter_add_(0, ends, at::ones({repeats.numel()}, ends.options()));
  return marks.narrow(0, 0, total).cumsum(0).to(repeats.scalar_type());
}

Tensor bincount(const Tensor& self, const std::optional<Tensor>& weights, int64_t minlength) {
  TORCH_CHECK(self.dim() == 1 && at::isIntegralType(self.scalar_type(), false) && minlength >= 0,
              "[bincount] wanted one dimension of integers and minlength of 0 or more");
  TORCH_CHECK_NOT_IMPLEMENTED(!weights.has_value() || !weights->defined(),
                              "[bincount] weights: got a tensor, wanted None on the cuda target");
  const auto options = self.options().dtype(at::kLong);
  if (self.numel() == 0) return at::zeros({minlength}, options);
  const Tensor values = self.to(at::kLong);
  TORCH_CHECK(values.min().item<int64_t>() >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  Tensor counts = at::zeros({std::max(values.max().item<int64_t>() + 1, minlength)}, options);
  return counts.scatter_add_(0, values, at::ones(values.sizes(), options));
}

bool equal(const Tensor& self, const Tensor& other) {
  require_ruda("equal", {{"self", self}, {"other", other}});
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected all tensors to have the same "
              "dtype: got ", self.scalar_type(), " and ", other.scalar_type());
  if (self.sizes() != other.sizes()) return false;
  return self.numel() == 0 || self.eq(other).all().item<bool>();
}

Tensor isin(const Tensor& elements, const Tensor& test, bool /*assume_unique*/, bool invert) {
  require_ruda("isin", {{"elements", elements}, {"test_elements", test}});
  const Tensor found = elements.unsqueeze(-1).eq(test.reshape({-1})).any(-1);
  return invert ? found.logical_not() : found;
}

Tensor isin_scalar(const Tensor& elements, const Scalar& test, bool /*assume_unique*/,
                   bool invert) {
  return invert ? elements.ne(test) : elements.eq(test);
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::linspace.out", TORCH_FN(linspace_out));
  library.impl("aten::tril", TORCH_FN(triangle_of<false>));
  library.impl("aten::triu", TORCH_FN(triangle_of<true>));
  library.impl("aten::tril_", TORCH_FN(triangle_in_place<false>));
  library.impl("aten::triu_", TORCH_FN(triangle_in_place<true>));
  library.impl("aten::tril.out", TORCH_FN(triangle_out<false>));
  library.impl("aten::triu.out", TORCH_FN(triangle_out<true>));
  library.impl("aten::flip", TORCH_FN(flip));
  library.impl("aten::roll", TORCH_FN(rolled));
  library.impl("aten::eye.out", TORCH_FN(eye_square_out));
  library.impl("aten::eye.m_out", TORCH_FN(eye_out));
  library.impl("aten::repeat", TORCH_FN(repeat));
  library.impl("aten::repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  library.impl("aten::bincount", TORCH_FN(bincount));
  library.impl("aten::equal", TORCH_FN(equal));
  library.impl("aten::isin.Tensor_Tensor", TORCH_FN(isin));
  library.impl("aten::isin.Tensor_Scalar", TORCH_FN(isin_scalar));
}

}  // namespace ruda_torch::cuda
