// sort and topk on the cuda target.

#include "cuda/indexing.h"
#include "cuda/operators.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>
#include <utility>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

// The first `keep` along a dimension.
Pair sorted(const char* operation, const Tensor& self, int64_t dim, int64_t keep, bool largest) {
  if (self.dim() == 0) {
    return {self.clone(), at::empty({}, self.options().dtype(at::kLong)).zero_()};
  }
  const Tensor rows = self.transpose(dim, -1).contiguous();
  auto sizes = rows.sizes().vec();
  sizes.back() = keep;
  Tensor values = at::empty(sizes, self.options());
  Tensor indices = at::empty(sizes, self.options().dtype(at::kLong));
  sort(operation, rows, values, indices, largest);
  return {values.transpose(dim, -1).contiguous(), indices.transpose(dim, -1).contiguous()};
}

Pair sort_stable(const Tensor& self, std::optional<bool> /*stable*/, int64_t dim,
                 bool descending) {
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  return sorted("sort", self, axis, self.dim() == 0 ? 1 : self.size(axis), descending);
}

Pair sort_default(const Tensor& self, int64_t dim, bool descending) {
  return sort_stable(self, std::nullopt, dim, descending);
}

Pair largest_of(const Tensor& self, int64_t k, int64_t dim, bool largest, bool /*sorted*/) {
  const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(k >= 0 && k <= (self.dim() == 0 ? 1 : self.size(axis)),
              "selected index k out of range");
  return sorted("topk", self, axis, k, largest);
}

std::tuple<Tensor&, Tensor&> give(Pair found, Tensor& values, Tensor& indices) {
  at::native::resize_output(values, std::get<0>(found).sizes());
  at::native::resize_output(indices, std::get<1>(found).sizes());
  values.copy_(std::get<0>(found));
  indices.copy_(std::get<1>(found));
  return {values, indices};
}

std::tuple<Tensor&, Tensor&> sort_out(const Tensor& self, std::optional<bool> stable, int64_t dim,
                                      bool descending, Tensor& values, Tensor& indices) {
  return give(sort_stable(self, stable, dim, descending), values, indices);
}

std::tuple<Tensor&, Tensor&> topk_out(const Tensor& self, int64_t k, int64_t dim, bool largest,
                                      bool in_order, Tensor& values, Tensor& indices) {
  return give(largest_of(self, k, dim, largest, in_order), values, indices);
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::sort", TORCH_FN(sort_default));
  library.impl("aten::sort.stable", TORCH_FN(sort_stable));
  library.impl("aten::sort.values_stable", TORCH_FN(sort_out));
  library.impl("aten::topk", TORCH_FN(largest_of));
  library.impl("aten::topk.values", TORCH_FN(topk_out));
}

}  // namespace ruda_torch::cuda
