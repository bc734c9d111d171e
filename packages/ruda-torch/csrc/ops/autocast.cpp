// Automatic mixed precision: which operators run in the autocast dtype, which in float32 and which
// in the widest dtype of their arguments. The lists are ATen's own.

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {

namespace {

Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false, "[binary_cross_entropy] is unsafe under autocast: the gradient of log of a "
              "rounded probability overflows; use binary_cross_entropy_with_logits on the scores "
              "before the sigmoid, or leave autocast around the loss");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define RUDA_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define RUDA_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define RUDA_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define RUDA_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(RUDA_LOWER_PRECISION)
  AT_FORALL_FP32(RUDA_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(RUDA_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(
      KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(RUDA_PROMOTE)
#undef RUDA_LOWER_PRECISION
#undef RUDA_FP32
#undef RUDA_FP32_SET_OPT_DTYPE
#undef RUDA_PROMOTE
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace at::autocast
