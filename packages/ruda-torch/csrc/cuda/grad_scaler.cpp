// torch.amp.GradScaler's two operators on the cuda target. Neither waits for the device: what was
// found, the scale and the count of good steps stay there.

#include "cuda/operators.h"
#include "ops/host_call.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

namespace ruda_torch::cuda {

namespace {

using at::Tensor;

constexpr const char* kUnscale = "aten::_amp_foreach_non_finite_check_and_unscale_";
constexpr const char* kUpdate = "aten::_amp_update_scale_";

void unscale(at::TensorList gradients, Tensor& found, const Tensor& inverse) {
  require_ruda(kUnscale, {{"found_inf", found}, {"inv_scale", inverse}});
  TORCH_CHECK(found.numel() == 1 && inverse.numel() == 1, "[", kUnscale,
              "] found_inf and inv_scale: got ", found.numel(), " and ", inverse.numel(),
              " elements, wanted one each");
  const Tensor factor = inverse.reshape(at::IntArrayRef());
  for (const Tensor& each : gradients) {
    require_ruda(kUnscale, {{"scaled_grads", each}});
    found.masked_fill_(at::isfinite(each).all().logical_not(), 1);
    Tensor gradient = each;
    gradient.mul_(factor);
  }
}

Tensor& update(Tensor& scale, Tensor& good_steps, const Tensor& found, double growth,
               double backoff, int64_t interval) {
  require_ruda(kUpdate,
               {{"self", scale}, {"growth_tracker", good_steps}, {"found_inf", found}});
  TORCH_CHECK(scale.numel() == 1 && good_steps.numel() == 1 && found.numel() == 1, "[", kUpdate,
              "] self, growth_tracker and found_inf: wanted one element each");
  TORCH_CHECK(good_steps.scalar_type() == at::kInt, "[", kUpdate, "] growth_tracker: got dtype ",
              good_steps.scalar_type(), ", wanted int32");
  const Tensor bad = found.ne(0);
  const Tensor steps = good_steps.add(1);
  const Tensor full = steps.eq(interval);
  const Tensor grown = scale.mul(growth);
  const Tensor kept = at::where(full.logical_and(at::isfinite(grown)), grown, scale);
  scale.copy_(at::where(bad, scale.mul(backoff), kept));
  good_steps.copy_(steps.masked_fill(bad.logical_or(full), 0));
  return scale;
}

RUDA_CUDA_OPERATORS(library) {
  library.impl(kUnscale, TORCH_FN(unscale));
  library.impl(kUpdate, TORCH_FN(update));
}

}  // namespace

}  // namespace ruda_torch::cuda
