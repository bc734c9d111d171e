// Fills and concatenation.

#include "stub_route.h"

#include "../alias.h"
#include "../runtime.h"

#include <ATen/native/Copy.h>
#include <ATen/native/Fill.h>
#include <ATen/native/cpu/CatKernel.h>
#include <ATen/ops/cat_native.h>
#include <ATen/ops/fill_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

namespace ruda_torch::stub {

namespace {

namespace native = at::native;

// ---- fill_, zero_ -------------------------------------------------------------------------------

constexpr char kFill[] = "aten::fill_.Scalar";
constexpr char kZero[] = "aten::zero_";
constexpr char kCat[] = "aten::cat";

Tensor& fill(Tensor& self, const Scalar& value) {
  begin();
  if (self.numel() != 1 || on_cuda()) return native::fill_(self, value);
  // ATen fills one element of the CPU without its kernel, and by another rule: a number beyond
  // float16's range is infinity, not an error. where() with a number depends on it.
  Tensor element = alias_as_cpu(self);
  native::fill_(element, value);
  return self;
}

Tensor& zero(Tensor& self) {
  constexpr size_t kOneThread = 1 << 17;  // ATen's grain of 32768 elements, in float32
  begin();
  const size_t nbytes = self.nbytes();
  if (on_cuda()) {
    if (!self.is_non_overlapping_and_dense()) return native::fill_(self, 0);
    if (nbytes == 0) return self;
    ruda_error error{};
    check(api()->fill(self.mutable_data_ptr(), 0, nbytes, api()->current_stream(), &error), error);
    return self;
  }
  if (nbytes <= kOneThread && self.is_non_overlapping_and_dense()) {
    if (nbytes != 0) std::memset(self.mutable_data_ptr(), 0, nbytes);
    return self;
  }
  return native::fill_(self, 0);
}

// ---- cat ----------------------------------------------------------------------------------------

bool cat_fits(const at::ITensorListRef& tensors) {
  const auto& list = tensors.materialize();
  if (list.empty()) return false;
  const auto type = list.front().get().scalar_type();
  return std::all_of(list.begin(), list.end(),
                     [type](const Tensor& tensor) { return is(tensor, type); });
}

Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  if (on_cuda() || !cat_fits(tensors)) {
    return boxed<kCat, false>().call<Tensor, const at::ITensorListRef&, int64_t>(tensors, dim);
  }
  begin();
  Fresh<native::structured_cat_out_cpu> operation;
  const auto plan = operation.meta(tensors, dim);
  operation.impl(tensors, plan.dim, plan.valid, plan.all_contiguous, plan.all_same_dtype,
                 plan.all_same_sizes_and_stride, plan.memory_format, operation.result());
  return std::move(operation.result());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  use_elementwise_kernels<native::fill_stub>();
  use_cpu_kernels<native::copy_stub, native::cat_serial_stub>();
  library.impl(kFill, TORCH_FN(fill));
  library.impl(kZero, TORCH_FN(zero));
  library.impl(kCat, TORCH_FN(cat));
}

}  // namespace

}  // namespace ruda_torch::stub
