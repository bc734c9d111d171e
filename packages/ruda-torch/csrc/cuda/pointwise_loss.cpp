// Losses that are computed element by element, and their gradients, on the cuda target.

#include "cuda/pointwise_forms.h"

#include <ATen/core/Reduction.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/ops/binary_cross_entropy_with_logits_native.h>
#include <ATen/ops/huber_loss_backward_native.h>
#include <ATen/ops/huber_loss_native.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mse_loss_backward_native.h>
#include <ATen/ops/mse_loss_native.h>
#include <ATen/ops/smooth_l1_loss_backward_native.h>
#include <ATen/ops/smooth_l1_loss_native.h>
#include <ATen/ops/sum.h>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

using OptionalTensor = const std::optional<Tensor>&;

void mse_backward(at::TensorIterator& iterator, const Scalar& factor) {
  pointwise("mse_backward", iterator, iterator.dtype(1), {factor});
}

void smooth_l1(at::TensorIteratorBase& iterator, double beta) {
  pointwise("smooth_l1", iterator, {beta});
}

void smooth_l1_backward(at::TensorIterator& iterator, const Scalar& factor, double beta) {
  pointwise("smooth_l1_backward", iterator, iterator.dtype(1), {factor, beta});
}

void huber(at::TensorIterator& iterator, double delta) { pointwise("huber", iterator, {delta}); }

void huber_backward(at::TensorIterator& iterator, const Scalar& factor, double delta) {
  pointwise("huber_backward", iterator, iterator.dtype(1), {factor, delta});
}

// ---- binary cross entropy of probabilities: ATen's CPU code works on host memory ----------------

Tensor cross_entropy(const Tensor& self, const Tensor& target, OptionalTensor weight,
                     int64_t reduction) {
  stub::begin();
  Tensor result;
  at::TensorIterator iterator = at::TensorIterator::borrowing_binary_op(result, self, target);
  pointwise("cross_entropy", iterator);
  result = iterator.output();
  if (weight.has_value() && weight->defined()) result.mul_(*weight);
  if (reduction == at::Reduction::Mean) return result.mean();
  return reduction == at::Reduction::Sum ? result.sum() : result;
}

Tensor cross_entropy_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                              OptionalTensor weight, int64_t reduction) {
  stub::begin();
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .add_owned_output(Tensor())
                                    .add_owned_const_input(grad.expand_as(self))
                                    .add_const_input(self)
                                    .add_const_input(target)
                                    .build();
  pointwise("cross_entropy_backward", iterator, self.scalar_type());
  Tensor result = iterator.output();
  if (weight.has_value() && weight->defined()) result.mul_(*weight);
  if (reduction == at::Reduction::Mean) result.div_(self.numel());
  return result;
}

RUDA_CUDA_OPERATORS(library) {
  stub::use_only_on_cuda<native::mse_stub>(RUDA_POINTWISE("mse"));
  stub::use_only_on_cuda<native::mse_backward_stub>(&mse_backward);
  stub::use_only_on_cuda<native::smooth_l1_stub>(&smooth_l1);
  stub::use_only_on_cuda<native::smooth_l1_backward_stub>(&smooth_l1_backward);
  stub::use_only_on_cuda<native::huber_stub>(&huber);
  stub::use_only_on_cuda<native::huber_backward_stub>(&huber_backward);

  add_forms<native::structured_mse_loss_out, const Tensor&, const Tensor&, int64_t>(
      library, "aten::mse_loss", nullptr, "aten::mse_loss.out");
  library.impl("aten::mse_loss_backward", TORCH_FN(native::mse_loss_backward));
  library.impl("aten::mse_loss_backward.grad_input", TORCH_FN(native::mse_loss_backward_out));
  add_forms<native::structured_smooth_l1_loss_out, const Tensor&, const Tensor&, int64_t, double>(
      library, "aten::smooth_l1_loss", nullptr, "aten::smooth_l1_loss.out");
  library.impl("aten::smooth_l1_loss_backward", TORCH_FN(native::smooth_l1_loss_backward));
  library.impl("aten::smooth_l1_loss_backward.grad_input",
               TORCH_FN(native::smooth_l1_loss_backward_out));
  library.impl("aten::huber_loss", TORCH_FN(native::huber_loss));
  library.impl("aten::huber_loss.out", TORCH_FN(native::huber_loss_out));
  library.impl("aten::huber_loss_backward", TORCH_FN(native::huber_loss_backward));
  library.impl("aten::huber_loss_backward.out", TORCH_FN(native::huber_loss_backward_out));
  library.impl("aten::binary_cross_entropy", TORCH_FN(cross_entropy));
  library.impl("aten::binary_cross_entropy_backward", TORCH_FN(cross_entropy_backward));
  library.impl("aten::binary_cross_entropy_with_logits",
               TORCH_FN(native::binary_cross_entropy_with_logits));
}

}  // namespace

}  // namespace ruda_torch::cuda
