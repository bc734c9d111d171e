// cat and stack on the cuda target: a copy of every tensor into its part of the result.

#include "cuda/operators.h"
#include "cuda/pointwise.h"
#include "ops/host_call.h"
#include "ops/stub_route.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorShape.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cat_native.h>

#include <vector>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;

Tensor joined(const at::ITensorListRef& tensors, int64_t dim) {
  for (const Tensor& tensor : tensors) require_ruda("cat", {{"tensors", tensor}});
  stub::begin();
  stub::Fresh<at::native::structured_cat_out_cpu> operation;
  const auto plan = operation.meta(tensors, dim);
  Tensor& result = operation.result();
  int64_t start = 0;
  for (const Tensor& tensor : tensors) {
    if (at::native::cat_should_skip_tensor(tensor)) continue;
    const int64_t length = tensor.size(static_cast<int64_t>(plan.dim));
    device_copy(result.narrow(static_cast<int64_t>(plan.dim), start, length), tensor);
    start += length;
  }
  return std::move(result);
}

Tensor& cat_out(const at::ITensorListRef& tensors, int64_t dim, Tensor& out) {
  const Tensor found = joined(tensors, dim);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

Tensor stack(at::TensorList tensors, int64_t dim) {
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty TensorList");
  const int64_t axis = at::maybe_wrap_dim(dim, tensors[0].dim() + 1);
  std::vector<Tensor> raised;
  for (const Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.sizes() == tensors[0].sizes(), "stack expects each tensor to be equal size, "
                "but got ", tensors[0].sizes(), " at entry 0 and ", tensor.sizes(), " at entry ",
                raised.size());
    raised.push_back(tensor.unsqueeze(axis));
  }
  return at::cat(raised, axis);
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::cat", TORCH_FN(joined));
  library.impl("aten::cat.out", TORCH_FN(cat_out));
  library.impl("aten::stack", TORCH_FN(stack));
}

}  // namespace ruda_torch::cuda
