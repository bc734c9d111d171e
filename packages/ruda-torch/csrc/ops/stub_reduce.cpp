// Reductions whose result has the input's dtype (sum, mean, amax, amin), and any and all.

#include "stub_route.h"

#include <ATen/native/BinaryOps.h>
#include <ATen/native/ReduceOps.h>
#include <ATen/ops/all_native.h>
#include <ATen/ops/amax_native.h>
#include <ATen/ops/amin_native.h>
#include <ATen/ops/any_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/sum_native.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

namespace ruda_torch::stub {

namespace {

namespace native = at::native;
using Dims = at::OptionalIntArrayRef;
using OptionalType = std::optional<c10::ScalarType>;

bool keeps_type(const Tensor& self, OptionalType type) {
  return on_ruda(self) && (is_floating(self) || self.scalar_type() == at::kLong) &&
         type.value_or(self.scalar_type()) == self.scalar_type();
}

// ---- sum, mean ----------------------------------------------------------------------------------

constexpr char kSum[] = "aten::sum";
constexpr char kSumDims[] = "aten::sum.dim_IntList";
constexpr char kSumOut[] = "aten::sum.IntList_out";
constexpr char kMean[] = "aten::mean";
constexpr char kMeanDims[] = "aten::mean.dim";

Tensor sum_dims(const Tensor& self, Dims dims, bool keep, OptionalType type) {
  if (keeps_type(self, type)) {
    const InsideRuda inside;
    return make<native::structured_sum_out>(self, dims, keep, type);
  }
  return boxed<kSumDims>().call<Tensor, const Tensor&, Dims, bool, OptionalType>(self, dims, keep,
                                                                                type);
}

Tensor sum(const Tensor& self, OptionalType type) {
  if (keeps_type(self, type)) return sum_dims(self, at::IntArrayRef{}, false, type);
  return boxed<kSum>().call<Tensor, const Tensor&, OptionalType>(self, type);
}

Tensor& sum_out(const Tensor& self, Dims dims, bool keep, OptionalType type, Tensor& result) {
  if (keeps_type(self, type) && is(result, self.scalar_type())) {
    const InsideRuda inside;
    return write<native::structured_sum_out>(result, self, dims, keep, type);
  }
  return boxed<kSumOut>().call<Tensor&, const Tensor&, Dims, bool, OptionalType, Tensor&>(
      self, dims, keep, type, result);
}

// The sum divided by the count, as ATen's CPU has it; its reduced floats go through float32. The
// cuda target has a kernel for the mean.
bool mean_fits(const Tensor& self, OptionalType type) {
  return !on_cuda() && on_ruda(self) &&
         (self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble) &&
         type.value_or(self.scalar_type()) == self.scalar_type();
}

Tensor mean_dims(const Tensor& self, Dims dims, bool keep, OptionalType type) {
  if (!mean_fits(self, type)) {
    return boxed<kMeanDims>().call<Tensor, const Tensor&, Dims, bool, OptionalType>(self, dims,
                                                                                   keep, type);
  }
  Tensor result = sum_dims(self, dims, keep, type);
  int64_t count = 1;
  if (!dims.has_value() || dims->empty() || self.dim() == 0) {
    count = self.numel();
  } else {
    for (const int64_t dim : *dims) count *= self.size(dim);
  }
  const Tensor* divisor = number(Scalar(count), self.scalar_type());
  return write<native::structured_div_out>(result, result, *divisor);
}

Tensor mean(const Tensor& self, OptionalType type) {
  if (mean_fits(self, type)) return mean_dims(self, at::IntArrayRef{}, false, type);
  return boxed<kMean>().call<Tensor, const Tensor&, OptionalType>(self, type);
}

// ---- amax, amin ---------------------------------------------------------------------------------

template <class Structured, class Names>
struct Extreme {
  static Tensor fresh(const Tensor& self, at::IntArrayRef dims, bool keep) {
    if (on_ruda(self)) {
      const InsideRuda inside;
      return make<Structured>(self, dims, keep);
    }
    return boxed<Names::kFresh>().template call<Tensor, const Tensor&, at::IntArrayRef, bool>(
        self, dims, keep);
  }

  static Tensor& out(const Tensor& self, at::IntArrayRef dims, bool keep, Tensor& result) {
    if (on_ruda(self) && is(result, self.scalar_type())) {
      const InsideRuda inside;
      return write<Structured>(result, self, dims, keep);
    }
    return boxed<Names::kOut>()
        .template call<Tensor&, const Tensor&, at::IntArrayRef, bool, Tensor&>(self, dims, keep,
                                                                              result);
  }
};

struct NamesAmax {
  static constexpr char kFresh[] = "aten::amax";
  static constexpr char kOut[] = "aten::amax.out";
};
struct NamesAmin {
  static constexpr char kFresh[] = "aten::amin";
  static constexpr char kOut[] = "aten::amin.out";
};
using Amax = Extreme<native::structured_amax_out, NamesAmax>;
using Amin = Extreme<native::structured_amin_out, NamesAmin>;

// ---- any, all -----------------------------------------------------------------------------------

constexpr char kAny[] = "aten::any";
constexpr char kAnyDim[] = "aten::any.dim";
constexpr char kAll[] = "aten::all";
constexpr char kAllDim[] = "aten::all.dim";

template <class Structured, const char* name>
Tensor truth(const Tensor& self) {
  if (is(self, at::kBool)) {
    const InsideRuda inside;
    return make<Structured>(self);
  }
  return boxed<name>().template call<Tensor, const Tensor&>(self);
}

template <class Structured, const char* name>
Tensor truth_dim(const Tensor& self, int64_t dim, bool keep) {
  if (is(self, at::kBool)) {
    const InsideRuda inside;
    return make<Structured>(self, dim, keep);
  }
  return boxed<name>().template call<Tensor, const Tensor&, int64_t, bool>(self, dim, keep);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  use_cpu_kernels<native::sum_stub, native::max_values_stub, native::min_values_stub,
                  native::and_stub, native::or_stub>();
  library.impl(kSum, TORCH_FN(sum));
  library.impl(kSumDims, TORCH_FN(sum_dims));
  library.impl(kSumOut, TORCH_FN(sum_out));
  library.impl(kMean, TORCH_FN(mean));
  library.impl(kMeanDims, TORCH_FN(mean_dims));
  library.impl(NamesAmax::kFresh, TORCH_FN(Amax::fresh));
  library.impl(NamesAmax::kOut, TORCH_FN(Amax::out));
  library.impl(NamesAmin::kFresh, TORCH_FN(Amin::fresh));
  library.impl(NamesAmin::kOut, TORCH_FN(Amin::out));
  library.impl(kAny, TORCH_FN((truth<native::structured_any_all_out, kAny>)));
  library.impl(kAnyDim, TORCH_FN((truth_dim<native::structured_any_out, kAnyDim>)));
  library.impl(kAll, TORCH_FN((truth<native::structured_all_all_out, kAll>)));
  library.impl(kAllDim, TORCH_FN((truth_dim<native::structured_all_out, kAllDim>)));
}

}  // namespace

}  // namespace ruda_torch::stub
