// x[i, mask, :] and x[...] = v on the cuda target, and what is found by a mask.

#include "cuda/indexing.h"
#include "cuda/operators.h"
#include "cuda/pointwise.h"
#include "ops/host_call.h"

#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <utility>
#include <vector>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;
using IndexList = c10::List<std::optional<Tensor>>;

int64_t product(at::IntArrayRef sizes, size_t begin, size_t end) {
  int64_t result = 1;
  for (size_t at = begin; at < end; ++at) result *= sizes[at];
  return result;
}

bool is_mask(const Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// One index, and how many dimensions it stands for: a mask of several gives places in all of them.
struct Entry {
  Tensor index;  // undefined: the whole dimension
  size_t span = 1;
};

// An indexed tensor as [outer, size, inner], with one int64 or int32 index for the middle.
struct Plan {
  Lookup lookup;
  Tensor self;  // dimensions in the order that makes the indexed ones neighbours
  Tensor index;
  std::vector<int64_t> sizes;  // of the result
  Axis axis;
};

std::vector<Entry> entries_of(const char* operation, const Tensor& self, const IndexList& indices) {
  std::vector<Entry> entries;
  size_t dims = 0;
  for (const std::optional<Tensor>& given : indices) {
    Entry entry;
    if (given.has_value() && given->defined()) {
      Tensor index = *given;
      // As ATen has it, indices may come from the CPU.
      if (!index.is_privateuseone()) {
        if (!index.is_cpu()) refuse_device(operation, "indices", index);
        index = index.to(self.device());
      }
      if (is_mask(index)) {
        entry.span = static_cast<size_t>(index.dim());
        for (size_t dim = 0; dim < entry.span; ++dim) {
          TORCH_CHECK_INDEX(
              dims + dim < static_cast<size_t>(self.dim()) &&
                  index.size(static_cast<int64_t>(dim)) ==
                      self.size(static_cast<int64_t>(dims + dim)),
              "[", operation, "] The shape of the mask ", index.sizes(), " at index ", dim,
              " does not match the shape of the indexed tensor ", self.sizes(), " at index ",
              dims + dim);
        }
        entry.index = positions(operation, index.contiguous());
      } else {
        TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, "[",
                          operation, "] indices: got dtype ", index.scalar_type(),
                          ", wanted int64, int32, bool or uint8");
        entry.index = std::move(index);
      }
    }
    dims += entry.span;
    entries.push_back(std::move(entry));
  }
  TORCH_CHECK_INDEX(dims <= static_cast<size_t>(self.dim()), "[", operation,
                    "] too many indices for tensor of dimension ", self.dim(), " (got ", dims, ")");
  return entries;
}

// Indices of several dimensions as one of their product.
Tensor joined(const Lookup& lookup, const std::vector<Entry>& used,
              const std::vector<int64_t>& sizes, at::IntArrayRef shape) {
  Tensor places;
  int64_t step = product(sizes, 0, sizes.size());
  for (size_t at = 0; at < used.size(); ++at) {
    step /= std::max<int64_t>(sizes[at], 1);
    const Tensor index = used[at].index.expand(shape).contiguous();
    if (at == 0) places = at::empty(shape, index.options().dtype(at::kLong));
    flatten(lookup, index, places, sizes[at], step, at == 0);
  }
  return places;
}

Plan plan_of(const char* operation, const Tensor& self, const IndexList& indices) {
  std::vector<Entry> entries = entries_of(operation, self, indices);
  std::vector<int64_t> front, middle, back;  // dimensions of self
  std::vector<Entry> used;
  std::vector<int64_t> used_sizes;
  bool adjacent = true;
  int64_t dim = 0;
  for (Entry& entry : entries) {
    const auto span = static_cast<int64_t>(entry.span);
    if (entry.index.defined()) {
      if (!back.empty()) adjacent = false;
      int64_t size = 1;
      for (int64_t each = 0; each < span; ++each) {
        middle.push_back(dim + each);
        size *= self.size(dim + each);
      }
      used_sizes.push_back(size);
      used.push_back(std::move(entry));
    } else {
      (used.empty() ? front : back).push_back(dim);
    }
    dim += span;
  }
  for (; dim < self.dim(); ++dim) back.push_back(dim);
  if (!adjacent) {  // the result has the indices' dimensions first
    back.insert(back.begin(), front.begin(), front.end());
    front.clear();
  }
  std::vector<int64_t> order = front;
  order.insert(order.end(), middle.begin(), middle.end());
  order.insert(order.end(), back.begin(), back.end());

  std::vector<int64_t> shape;
  for (const Entry& entry : used) {
    shape = at::infer_size(shape, entry.index.sizes());
  }
  Plan plan{{operation, /*wrap=*/true}, self.permute(order), {}, {}, {}};
  const auto before = front.size();
  const auto behind = before + middle.size();
  for (const int64_t each : front) plan.sizes.push_back(self.size(each));
  plan.sizes.insert(plan.sizes.end(), shape.begin(), shape.end());
  for (const int64_t each : back) plan.sizes.push_back(self.size(each));
  const auto all = plan.self.sizes();
  plan.axis = {product(all, 0, before), product(all, before, behind),
               product(all, behind, all.size())};
  if (used.size() == 1) {
    plan.index = used[0].index.contiguous();
  } else if (!used.empty()) {
    // An empty dimension has no index that may be used, whatever the others are.
    TORCH_CHECK_INDEX(plan.axis.size != 0 || product(shape, 0, shape.size()) == 0, "[", operation,
                      "] index out of range of a dimension of size 0");
    plan.index = joined(plan.lookup, used, used_sizes, shape);
    plan.lookup.wrap = false;
  }
  return plan;
}

Tensor read(const Tensor& self, const IndexList& indices) {
  const Plan plan = plan_of("index", self, indices);
  if (!plan.index.defined()) return self.clone();
  Tensor out = at::empty(plan.sizes, self.options());
  take(plan.lookup, plan.self.contiguous(), plan.index, out, plan.axis);
  return out;
}

Tensor& index_out(const Tensor& self, const IndexList& indices, Tensor& out) {
  const Tensor found = read(self, indices);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

// The mask, if that is all there is, with self's dimensions.
std::optional<Tensor> only_mask(const Tensor& self, const IndexList& indices) {
  std::optional<Tensor> mask;
  int64_t before = 0;
  for (const std::optional<Tensor>& given : indices) {
    const bool there = given.has_value() && given->defined();
    if (there && (mask.has_value() || !is_mask(*given) || !given->is_privateuseone())) {
      return std::nullopt;
    }
    if (there) {
      mask = *given;
    } else if (!mask.has_value()) {
      ++before;
    }
  }
  if (!mask.has_value()) return std::nullopt;
  for (int64_t dim = 0; dim < mask->dim(); ++dim) {
    if (before + dim >= self.dim() || mask->size(dim) != self.size(before + dim)) {
      return std::nullopt;  // plan_of has the error
    }
  }
  Tensor full = mask->to(at::kBool);
  while (before + full.dim() < self.dim()) full = full.unsqueeze(-1);
  return full;
}

Tensor& index_put(Tensor& self, const IndexList& indices, const Tensor& values, bool accumulate_,
                  bool /*unsafe*/) {
  constexpr const char* name = "index_put_";
  TORCH_CHECK_INDEX(self.scalar_type() == values.scalar_type(), "[", name, "] values: got dtype ",
                    values.scalar_type(), ", wanted the tensor's ", self.scalar_type());
  const bool number = values.dim() == 0;
  if (!values.is_privateuseone() && !(number && values.is_cpu())) {
    refuse_device(name, "values", values);
  }
  if (!accumulate_ && number) {
    if (const auto mask = only_mask(self, indices)) return self.masked_fill_(*mask, values);
  }
  const Tensor given = values.to(self.device());
  const Plan plan = plan_of(name, self, indices);
  if (!plan.index.defined()) return accumulate_ ? self.add_(given) : self.copy_(given);
  const bool in_place = plan.self.is_contiguous();
  const Tensor target = in_place ? plan.self : plan.self.contiguous();
  const bool one = !accumulate_ && given.numel() == 1;
  TORCH_CHECK_INDEX(at::is_expandable_to(given.sizes(), plan.sizes), "[", name,
                    "] shape mismatch: value tensor of shape ", given.sizes(),
                    " cannot be broadcast to indexing result of shape ", plan.sizes);
  const Tensor source = one ? given : given.expand(plan.sizes).contiguous();
  if (accumulate_) {
    accumulate(plan.lookup, target, plan.index, source, plan.axis);
  } else {
    put(plan.lookup, target, plan.index, source, plan.axis);
  }
  if (!in_place) device_copy(plan.self, target);
  return self;
}

Tensor index_put_copy(const Tensor& self, const IndexList& indices, const Tensor& values,
                      bool accumulate_) {
  Tensor result = self.clone(at::MemoryFormat::Contiguous);
  index_put(result, indices, values, accumulate_, false);
  return result;
}

// ---- by a mask ----------------------------------------------------------------------------------

Tensor find(const Tensor& self) {
  const Tensor places = positions("nonzero", self.contiguous());
  Tensor out = at::empty({places.numel(), self.dim()}, places.options());
  coordinates(places, self.sizes(), out);
  return out;
}

Tensor& nonzero_out(const Tensor& self, Tensor& out) {
  const Tensor found = find(self);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

Tensor taken(const Lookup& lookup, const Tensor& self, const Tensor& places) {
  Tensor out = at::empty(places.sizes(), self.options());
  take(lookup, self.contiguous(), places, out, {1, self.numel(), 1});
  return out;
}

Tensor select_by_mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "[masked_select] mask: got dtype ",
              mask.scalar_type(), ", wanted bool");
  if (!mask.is_privateuseone()) refuse_device("masked_select", "mask", mask);
  if (!self.is_privateuseone()) refuse_device("masked_select", "self", self);
  const auto shape = at::infer_size(self.sizes(), mask.sizes());
  const Tensor places = positions("masked_select", mask.expand(shape).contiguous());
  return taken({"masked_select"}, self.expand(shape), places);
}

Tensor& masked_select_out(const Tensor& self, const Tensor& mask, Tensor& out) {
  const Tensor found = select_by_mask(self, mask);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

Tensor& masked_scatter(Tensor& self, const Tensor& mask, const Tensor& source) {
  constexpr const char* name = "masked_scatter_";
  require_ruda(name, {{"mask", mask}, {"source", source}});
  TORCH_CHECK(mask.scalar_type() == at::kBool, "[", name, "] mask: got dtype ", mask.scalar_type(),
              ", wanted bool");
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "[", name, "] source: got dtype ",
              source.scalar_type(), ", wanted the tensor's ", self.scalar_type());
  const Tensor places = positions(name, mask.expand(self.sizes()).contiguous());
  const int64_t count = places.numel();
  TORCH_CHECK(source.numel() >= count, "[", name, "] source: got ", source.numel(),
              " elements, wanted one for each of the mask's ", count);
  const Tensor target = self.contiguous();
  put({name}, target, places, source.contiguous().view({-1}).narrow(0, 0, count),
      {1, self.numel(), 1});
  if (!target.is_same(self)) device_copy(self, target);
  return self;
}

Tensor masked_scatter_copy(const Tensor& self, const Tensor& mask, const Tensor& source) {
  Tensor result = self.expand(at::infer_size(self.sizes(), mask.sizes()))
                      .clone(at::MemoryFormat::Contiguous);
  masked_scatter(result, mask, source);
  return result;
}

Tensor take_flat(const Tensor& self, const Tensor& index) {
  const Tensor places = checked_index("take", "index", index);
  TORCH_CHECK_INDEX(self.numel() != 0 || places.numel() == 0, "[take] of an empty tensor");
  return taken({"take", /*wrap=*/true}, self, places);
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::index.Tensor", TORCH_FN(read));
  library.impl("aten::index.Tensor_out", TORCH_FN(index_out));
  library.impl("aten::_unsafe_index.Tensor", TORCH_FN(read));
  library.impl("aten::_index_put_impl_", TORCH_FN(index_put));
  library.impl("aten::index_put", TORCH_FN(index_put_copy));
  library.impl("aten::_unsafe_index_put", TORCH_FN(index_put_copy));
  library.impl("aten::nonzero", TORCH_FN(find));
  library.impl("aten::nonzero.out", TORCH_FN(nonzero_out));
  library.impl("aten::masked_select", TORCH_FN(select_by_mask));
  library.impl("aten::masked_select.out", TORCH_FN(masked_select_out));
  library.impl("aten::masked_scatter_", TORCH_FN(masked_scatter));
  library.impl("aten::masked_scatter", TORCH_FN(masked_scatter_copy));
  library.impl("aten::take", TORCH_FN(take_flat));
}

}  // namespace ruda_torch::cuda
