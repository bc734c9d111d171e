// Operators with an index along one dimension, on the cuda target.

#include "cuda/indexing.h"
#include "cuda/operators.h"
#include "cuda/pointwise.h"
#include "ops/host_call.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Scalar.h>

#include <utility>
#include <vector>

namespace ruda_torch::cuda {

namespace {

using at::Scalar;
using at::Tensor;

void same_dtype(const char* operation, const char* argument, const Tensor& self,
                const Tensor& given) {
  TORCH_CHECK(self.scalar_type() == given.scalar_type(), "[", operation, "] ", argument,
              ": got dtype ", given.scalar_type(), ", wanted the tensor's ", self.scalar_type());
}

// ---- embedding ----------------------------------------------------------------------------------

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t /*padding_idx*/,
                 bool /*scale_grad_by_freq*/, bool /*sparse*/) {
  require_ruda("embedding", {{"weight", weight}, {"indices", indices}});
  TORCH_CHECK(weight.dim() == 2, "[embedding] weight: got shape ", weight.sizes(),
              ", wanted two dimensions");
  auto sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  Tensor out = at::empty(sizes, weight.options());
  take({"embedding"}, weight.contiguous(), checked_index("embedding", "indices", indices), out,
       Axis(weight.sizes(), 0));
  return out;
}

Tensor embedding_backward(const Tensor& grad, const Tensor& indices, int64_t count,
                          int64_t padding, bool scale_grad_by_freq) {
  constexpr const char* name = "embedding_dense_backward";
  require_ruda(name, {{"grad_output", grad}, {"indices", indices}});
  TORCH_CHECK_NOT_IMPLEMENTED(!scale_grad_by_freq, "[", name, "] scale_grad_by_freq: got True, "
                              "which the cuda target does not have");
  const int64_t width = grad.size(-1);
  Tensor result = at::zeros({count, width}, grad.options());
  accumulate({name}, result, checked_index(name, "indices", indices), grad.contiguous(),
             {1, count, width}, 1, padding < 0 ? -1 : padding);
  return result;
}

// ---- index_select, index_add, index_copy, index_fill --------------------------------------------

// The tensor with at least one dimension.
Tensor at_least_1d(const Tensor& tensor) { return tensor.dim() == 0 ? tensor.view({1}) : tensor; }

Tensor select(const Tensor& self, int64_t dim, const Tensor& index) {
  constexpr const char* name = "index_select";
  require_ruda(name, {{"self", self}, {"index", index}});
  TORCH_CHECK_INDEX(index.dim() <= 1, "[", name, "] index: got ", index.dim(),
                    " dimensions, wanted one");
  const Tensor places = checked_index(name, "index", index);
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  const Tensor source = at_least_1d(self).contiguous();
  auto sizes = source.sizes().vec();
  sizes[axis] = places.numel();
  Tensor out = at::empty(sizes, self.options());
  TORCH_CHECK_INDEX(source.size(axis) != 0 || out.numel() == 0, "[", name,
                    "] index out of range of a dimension of size 0");
  take({name}, source, places, out, Axis(source.sizes(), axis));
  return self.dim() == 0 ? out.view(at::IntArrayRef()) : out;
}

Tensor& index_select_out(const Tensor& self, int64_t dim, const Tensor& index, Tensor& out) {
  const Tensor found = select(self, dim, index);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

// Runs `write` on a contiguous tensor with self's contents, and gives self what it wrote.
template <class Write>
void through_contiguous(const Tensor& self, const Write& write) {
  const Tensor target = self.contiguous();
  write(target);
  if (!target.is_same(self)) device_copy(self, target);
}

// Checks what index_add and index_copy are given; the source with the sizes that are written.
Tensor checked_source(const char* operation, const Tensor& self, int64_t axis, const Tensor& index,
                      const Tensor& source) {
  require_ruda(operation, {{"self", self}, {"index", index}, {"source", source}});
  same_dtype(operation, "source", self, source);
  TORCH_CHECK_INDEX(index.dim() <= 1, "[", operation, "] index: got ", index.dim(),
                    " dimensions, wanted one");
  auto wanted = at_least_1d(self).sizes().vec();
  wanted[axis] = index.numel();
  const Tensor given = at_least_1d(source);
  TORCH_CHECK_INDEX(given.sizes() == at::IntArrayRef(wanted), "[", operation,
                    "] source: got shape ", source.sizes(), ", wanted ", wanted);
  return given.contiguous();
}

Tensor& index_add_(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                   const Scalar& alpha) {
  constexpr const char* name = "index_add_";
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  const Tensor given = checked_source(name, self, axis, index, source);
  const Tensor places = checked_index(name, "index", index);
  through_contiguous(at_least_1d(self), [&](const Tensor& target) {
    accumulate({name}, target, places, given, Axis(target.sizes(), axis), alpha.toDouble());
  });
  return self;
}

Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                 const Scalar& alpha) {
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  return index_add_(result, dim, index, source, alpha);
}

Tensor& index_copy_(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  constexpr const char* name = "index_copy_";
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  const Tensor given = checked_source(name, self, axis, index, source);
  const Tensor places = checked_index(name, "index", index);
  through_contiguous(at_least_1d(self), [&](const Tensor& target) {
    put({name}, target, places, given, Axis(target.sizes(), axis));
  });
  return self;
}

Tensor index_copy(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  return index_copy_(result, dim, index, source);
}

Tensor& index_fill_(Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  constexpr const char* name = "index_fill_";
  require_ruda(name, {{"self", self}, {"index", index}});
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  const Tensor places = checked_index(name, "index", index);
  const Tensor one = at::full({1}, value, self.options());
  through_contiguous(at_least_1d(self), [&](const Tensor& target) {
    put({name, /*wrap=*/true}, target, places, one, Axis(target.sizes(), axis));
  });
  return self;
}

Tensor& index_fill_tensor_(Tensor& self, int64_t dim, const Tensor& index, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "[index_fill_] value: got ", value.dim(),
              " dimensions, wanted a number");
  return index_fill_(self, dim, index, value.item());
}

Tensor index_fill(const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  return index_fill_(result, dim, index, value);
}

// ---- gather, scatter ----------------------------------------------------------------------------

// The part of a tensor that an index of fewer rows and columns reaches: in all dimensions but one.
Tensor reached(const char* operation, const Tensor& tensor, const Tensor& index, int64_t axis) {
  TORCH_CHECK(tensor.dim() == index.dim(), "[", operation, "] index: got ", index.dim(),
              " dimensions, wanted the tensor's ", tensor.dim());
  Tensor part = tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (dim == axis || index.size(dim) == tensor.size(dim)) continue;
    TORCH_CHECK(index.size(dim) < tensor.size(dim), "[", operation, "] index: got shape ",
                index.sizes(), ", wanted at most ", tensor.sizes(), " apart from dimension ", axis);
    part = part.narrow(dim, 0, index.size(dim));
  }
  return part;
}

Tensor gather_dim(const Tensor& self, int64_t dim, const Tensor& index, bool /*sparse_grad*/) {
  constexpr const char* name = "gather";
  require_ruda(name, {{"self", self}, {"index", index}});
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  Tensor out = at::empty(index.sizes(), self.options());
  if (index.numel() == 0) return out;
  const Tensor places = checked_index(name, "index", at_least_1d(index));
  const Tensor source = reached(name, at_least_1d(self), places, axis).contiguous();
  gather({name}, source, places, out, Axis(source.sizes(), axis));
  return out;
}

Tensor& gather_out(const Tensor& self, int64_t dim, const Tensor& index, bool sparse_grad,
                   Tensor& out) {
  const Tensor found = gather_dim(self, dim, index, sparse_grad);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

// The part of src that belongs to the index.
Tensor source_of(const char* operation, const Tensor& index, const Tensor& src) {
  const Tensor given = at_least_1d(src);
  TORCH_CHECK(given.dim() == index.dim(), "[", operation, "] src: got ", given.dim(),
              " dimensions, wanted the index's ", index.dim());
  Tensor part = given;
  for (int64_t dim = 0; dim < index.dim(); ++dim) {
    TORCH_CHECK(index.size(dim) <= given.size(dim), "[", operation, "] src: got shape ",
                src.sizes(), ", wanted at least the index's ", index.sizes());
    part = part.narrow(dim, 0, index.size(dim));
  }
  return part.contiguous();
}

Tensor& scatter_source(Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  constexpr const char* name = "scatter_";
  require_ruda(name, {{"self", self}, {"index", index}, {"src", src}});
  same_dtype(name, "src", self, src);
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  if (index.numel() == 0) return self;
  const Tensor places = checked_index(name, "index", at_least_1d(index));
  const Tensor given = source_of(name, places, src);
  through_contiguous(reached(name, at_least_1d(self), places, axis), [&](const Tensor& target) {
    scatter({name}, target, places, given, Axis(target.sizes(), axis));
  });
  return self;
}

Tensor& scatter_value(Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  constexpr const char* name = "scatter_";
  require_ruda(name, {{"self", self}, {"index", index}});
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  if (index.numel() == 0) return self;
  const Tensor places = checked_index(name, "index", at_least_1d(index));
  const Tensor one = at::full({1}, value, self.options());
  through_contiguous(reached(name, at_least_1d(self), places, axis), [&](const Tensor& target) {
    scatter({name}, target, places, one, Axis(target.sizes(), axis));
  });
  return self;
}

// Shorter floats are added up in float32, shorter integers and bools in int64, and rounded once.
c10::ScalarType adding_type(c10::ScalarType type) {
  if (type == at::kHalf || type == at::kBFloat16) return at::kFloat;
  if (at::isIntegralType(type, /*includeBool=*/true)) return at::kLong;
  return type;
}

Tensor& scatter_add_(Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  constexpr const char* name = "scatter_add_";
  require_ruda(name, {{"self", self}, {"index", index}, {"src", src}});
  same_dtype(name, "src", self, src);
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  if (index.numel() == 0) return self;
  const Tensor places = checked_index(name, "index", at_least_1d(index));
  const auto type = adding_type(self.scalar_type());
  const Tensor given = source_of(name, places, src).to(type);
  const Tensor part = reached(name, at_least_1d(self), places, axis);
  const Tensor target = part.to(type).contiguous();
  scatter_add({name}, target, places, given, Axis(target.sizes(), axis));
  if (!target.is_same(part)) device_copy(part, target);
  return self;
}

template <auto& in_place, class Value>
Tensor copied(const Tensor& self, int64_t dim, const Tensor& index, const Value& value) {
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  return in_place(result, dim, index, value);
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::embedding", TORCH_FN(embedding));
  library.impl("aten::embedding_dense_backward", TORCH_FN(embedding_backward));
  library.impl("aten::index_select", TORCH_FN(select));
  library.impl("aten::index_select.out", TORCH_FN(index_select_out));
  library.impl("aten::index_add_", TORCH_FN(index_add_));
  library.impl("aten::index_add", TORCH_FN(index_add));
  library.impl("aten::index_copy_", TORCH_FN(index_copy_));
  library.impl("aten::index_copy", TORCH_FN(index_copy));
  library.impl("aten::index_fill_.int_Scalar", TORCH_FN(index_fill_));
  library.impl("aten::index_fill_.int_Tensor", TORCH_FN(index_fill_tensor_));
  library.impl("aten::index_fill.int_Scalar", TORCH_FN(index_fill));
  library.impl("aten::gather", TORCH_FN(gather_dim));
  library.impl("aten::gather.out", TORCH_FN(gather_out));
  library.impl("aten::scatter_.src", TORCH_FN(scatter_source));
  library.impl("aten::scatter_.value", TORCH_FN(scatter_value));
  library.impl("aten::scatter_add_", TORCH_FN(scatter_add_));
  library.impl("aten::scatter.src", TORCH_FN((copied<scatter_source, Tensor>)));
  library.impl("aten::scatter.value", TORCH_FN((copied<scatter_value, Scalar>)));
  library.impl("aten::scatter_add", TORCH_FN((copied<scatter_add_, Tensor>)));
}

}  // namespace ruda_torch::cuda
