// ruda::linear_cross_entropy on ruda, with and without the gradients, and the shapes on meta.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ruda/dnn.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using WithGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Tensor float_like(const Tensor& tensor, bool wanted) {
  return wanted ? at::empty_symint(tensor.sym_sizes(), tensor.options().dtype(at::kFloat))
                : Tensor();
}

WithGradients allocate(const Tensor& hidden, const Tensor& head, const OptionalTensor& bias,
                       std::array<bool, 3> mask) {
  const bool has_bias = bias.has_value() && bias->defined();
  return {at::empty({}, hidden.options().dtype(at::kFloat)),
          at::empty({}, hidden.options().dtype(at::kLong)), float_like(hidden, mask[0]),
          float_like(head, mask[1]), has_bias ? float_like(*bias, mask[2]) : Tensor()};
}

WithGradients with_gradients(const Tensor& hidden, const Tensor& head, const OptionalTensor& bias,
                             const Tensor& target, int64_t token_chunk, int64_t ignore_index,
                             std::array<bool, 3> mask) {
  static const Kernel kernel("linear_cross_entropy.forward",
                             ruda::linear_cross_entropy_args_layout);
  const Tensor rows = hidden.contiguous();
  const Tensor classes = head.contiguous();
  const Tensor targets = target.contiguous();
  const OptionalTensor offset = contiguous(bias);
  WithGradients result = allocate(rows, classes, offset, mask);
  const auto& [loss, count, dhidden, dhead, dbias] = result;
  Views views("linear_cross_entropy");
  const ruda::linear_cross_entropy_args args{views(rows, "hidden"),
                                             views(classes, "head"),
                                             views.optional(offset, "bias"),
                                             views(targets, "target"),
                                             views(loss, "loss"),
                                             views(count, "count"),
                                             views.optional(dhidden, "dhidden"),
                                             views.optional(dhead, "dhead"),
                                             views.optional(dbias, "dbias"),
                                             token_chunk,
                                             ignore_index};
  kernel.launch(&args);
  return result;
}

std::tuple<Tensor, Tensor> forward(const Tensor& hidden, const Tensor& head,
                                   const OptionalTensor& bias, const Tensor& target,
                                   int64_t token_chunk, int64_t ignore_index) {
  auto result = with_gradients(hidden, head, bias, target, token_chunk, ignore_index,
                               {false, false, false});
  return {std::get<0>(result), std::get<1>(result)};
}

WithGradients with_gradients_meta(const Tensor& hidden, const Tensor& head,
                                  const OptionalTensor& bias, const Tensor& target,
                                  int64_t token_chunk, int64_t ignore_index,
                                  std::array<bool, 3> mask) {
  TORCH_CHECK_VALUE(hidden.dim() == 2 && head.dim() == 2 && head.sym_size(1) == hidden.sym_size(1),
                    "[linear_cross_entropy] hidden, head: got shapes ", hidden.sym_sizes(), " and ",
                    head.sym_sizes(), ", wanted [T, H] and [V, H]");
  TORCH_CHECK_VALUE(target.dim() == 1 && target.sym_size(0) == hidden.sym_size(0),
                    "[linear_cross_entropy] target: got shape ", target.sym_sizes(),
                    ", wanted [T] = [", hidden.sym_size(0), "]");
  return allocate(hidden, head, bias, mask);
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& hidden, const Tensor& head,
                                        const OptionalTensor& bias, const Tensor& target,
                                        int64_t token_chunk, int64_t ignore_index) {
  auto result = with_gradients_meta(hidden, head, bias, target, token_chunk, ignore_index,
                                    {false, false, false});
  return {std::get<0>(result), std::get<1>(result)};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("linear_cross_entropy", &forward);
  m.impl("linear_cross_entropy_with_gradients", &with_gradients);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("linear_cross_entropy", &forward_meta);
  m.impl("linear_cross_entropy_with_gradients", &with_gradients_meta);
}

}  // namespace ruda_torch
