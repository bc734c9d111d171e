// nll_loss and nll_loss2d on the cuda target (ruda-dnn's kernels), forward and backward.

#include "cuda/operators.h"
#include "ops/host_call.h"
#include "runtime.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/nll_loss_backward_meta_dispatch.h>
#include <ATen/ops/nll_loss_forward_meta_dispatch.h>
#include <ATen/ops/zeros.h>
#include <ruda/device.hpp>

#include <limits>

namespace ruda_torch {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;

constexpr int64_t kBlock = 1024;  // as in ruda_dnn/nll_loss/launch.py
constexpr int64_t kMostBlocks = 65535;

bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

ruda_argument pointer(const Tensor& tensor) {
  return ruda::pointer(tensor.const_data_ptr(), *ruda_dtype_of(tensor.scalar_type()));
}
ruda_argument pointer(const OptionalTensor& tensor) {
  return given(tensor) ? pointer(*tensor) : ruda::nothing();
}
ruda_argument written(const Tensor& tensor) {
  return ruda::pointer(tensor.mutable_data_ptr(), *ruda_dtype_of(tensor.scalar_type()));
}

template <class... Arguments>
void launch(ruda::device_kernel& kernel, int64_t x, int64_t y, const Arguments&... arguments) {
  ruda_error error{};
  check(kernel.launch({static_cast<uint32_t>(x), static_cast<uint32_t>(y)}, {}, &error,
                      arguments...),
        error);
}

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

void check_limit(const char* operation, const char* what, int64_t value) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - kBlock;
  TORCH_CHECK_NOT_IMPLEMENTED(value <= most, "[", operation, "] ", what, ": got ", value,
                              ", wanted at most ", most, " on the cuda target");
}

// The log probabilities as [samples, classes, inner], and what goes with them.
struct Problem {
  const char* operation;
  Tensor x;
  Tensor target;  // int64
  OptionalTensor weight;
  int64_t classes;
  int64_t inner = 1;
  int64_t ignore_index;

  Problem(const char* name, const Tensor& self, const Tensor& given_target,
          const OptionalTensor& given_weight, int64_t ignored)
      : operation(name), ignore_index(ignored) {
    require_ruda(name, {{"self", self}, {"target", given_target},
                        {"weight", given_weight.value_or(Tensor())}});
    const auto type = self.scalar_type();
    if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) {
      refuse_on_cuda(name, self);
    }
    const auto index = given_target.scalar_type();
    TORCH_CHECK(index == at::kLong || index == at::kByte, "[", name, "] target: expected scalar "
                "type Long or Byte but found ", index);
    TORCH_CHECK(!given(given_weight) || given_weight->scalar_type() == type, "[", name,
                "] weight: expected scalar type ", type, " but found ",
                given(given_weight) ? given_weight->scalar_type() : type);
    x = self.contiguous();
    target = given_target.to(at::kLong).contiguous();
    if (given(given_weight)) weight = given_weight->contiguous();
    classes = self.size(self.dim() == 1 ? 0 : 1);
    for (int64_t i = 2; i < self.dim(); ++i) inner *= self.size(i);
    check_limit(name, "rows", target.numel());
    check_limit(name, "values of a sample", classes * inner);
  }

  std::array<ruda_argument, 3> sizes() const {
    return {ruda::integer(classes), ruda::integer(inner), ruda::integer(ignore_index)};
  }

  // IndexError for a target that is no class, as on the host: waits for the kernel before.
  void check_targets(const Tensor& wrong) const {
    const int64_t row = wrong.item<int64_t>();
    if (row == 0) return;
    TORCH_CHECK_INDEX(false, "[", operation, "] Target ",
                      target.view({-1}).select(0, row - 1).item<int64_t>(), " is out of bounds.");
  }
};

Two forward(const Problem& problem, int64_t reduction) {
  static ruda::device_kernel sum{"nll_loss.sum"};
  static ruda::device_kernel each{"nll_loss.each"};
  const auto options = problem.x.options();
  const auto [classes, inner, ignored] = problem.sizes();
  const Tensor wrong = at::zeros({1}, options.dtype(at::kLong));
  const int64_t rows = problem.target.numel();
  if (reduction == at::Reduction::None) {
    Tensor losses = at::empty(problem.target.sizes(), options);
    Tensor total = at::zeros({}, options);
    if (rows == 0) return {std::move(losses), std::move(total)};
    launch(each, ceil_div(rows, kBlock), 1, pointer(problem.x), pointer(problem.target),
           pointer(problem.weight), written(losses), written(wrong), ruda::integer(rows), classes,
           inner, ignored, ruda::integer(kBlock));
    problem.check_targets(wrong);
    return {std::move(losses), std::move(total)};
  }
  Tensor loss = at::empty({}, options);
  Tensor total = at::empty({}, options);
  launch(sum, 1, 1, pointer(problem.x), pointer(problem.target), pointer(problem.weight),
         written(loss), written(total), written(wrong), ruda::integer(rows), classes, inner,
         ignored, ruda::boolean(reduction == at::Reduction::Mean), ruda::integer(kBlock));
  problem.check_targets(wrong);
  return {std::move(loss), std::move(total)};
}

Tensor backward(const Problem& problem, const Tensor& grad, int64_t reduction,
                const Tensor& total) {
  static ruda::device_kernel kernel{"nll_loss.backward"};
  require_ruda(problem.operation, {{"grad_output", grad}, {"total_weight", total}});
  const bool each = reduction == at::Reduction::None;
  TORCH_CHECK(grad.numel() == (each ? problem.target.numel() : 1), "[", problem.operation,
              "] grad_output: got shape ", grad.sizes(), ", wanted that of the result");
  TORCH_CHECK(grad.scalar_type() == problem.x.scalar_type(), "[", problem.operation,
              "] grad_output: expected scalar type ", problem.x.scalar_type(), " but found ",
              grad.scalar_type());
  Tensor dx = at::empty(problem.x.sizes(), problem.x.options());
  if (dx.numel() == 0) return dx;
  const auto [classes, inner, ignored] = problem.sizes();
  const int64_t blocks = ceil_div(problem.classes * problem.inner, kBlock);
  TORCH_CHECK_NOT_IMPLEMENTED(blocks <= kMostBlocks, "[", problem.operation, "] self: got shape ",
                              problem.x.sizes(), ", wanted at most ", kMostBlocks * kBlock,
                              " values of one sample on the cuda target");
  const Tensor upper = grad.contiguous();
  const Tensor whole = reduction == at::Reduction::Mean ? total.contiguous() : Tensor();
  launch(kernel, dx.numel() / (problem.classes * problem.inner), blocks, pointer(upper),
         pointer(problem.target), pointer(problem.weight),
         whole.defined() ? pointer(whole) : ruda::nothing(), written(dx), classes, inner, ignored,
         ruda::boolean(each), ruda::integer(kBlock));
  return dx;
}

// Sizes, strides and dtype without values.
Tensor outline(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}
OptionalTensor outline(const OptionalTensor& tensor) {
  return given(tensor) ? OptionalTensor(outline(*tensor)) : std::nullopt;
}

// ---- [N, C] or [C] ------------------------------------------------------------------------------

Two nll_forward(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                int64_t reduction, int64_t ignore_index) {
  const Problem problem("aten::nll_loss_forward", self, target, weight, ignore_index);
  // ATen's checks of the shapes.
  at::meta::nll_loss_forward(outline(self), outline(target), outline(weight), reduction,
                             ignore_index);
  return forward(problem, reduction);
}

Tensor nll_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                    const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                    const Tensor& total) {
  const Problem problem("aten::nll_loss_backward", self, target, weight, ignore_index);
  at::meta::nll_loss_backward(outline(grad), outline(self), outline(target), outline(weight),
                              reduction, ignore_index, outline(total));
  return backward(problem, grad, reduction, total);
}

// ---- [N, C, H, W] -------------------------------------------------------------------------------

void check_images(const char* operation, const Tensor& self, const Tensor& target,
                  const OptionalTensor& weight) {
  TORCH_CHECK(self.dim() == 4 && target.dim() == 3 && self.size(0) == target.size(0) &&
                  self.size(2) == target.size(1) && self.size(3) == target.size(2),
              "[", operation, "] got shapes ", self.sizes(), " and ", target.sizes(),
              ", wanted [N, C, H, W] and targets [N, H, W]");
  TORCH_CHECK(!given(weight) || weight->numel() == self.size(1), "[", operation,
              "] weight tensor should be defined either for all or no classes: got ",
              given(weight) ? weight->numel() : 0, " for ", self.size(1));
}

Two nll2d_forward(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                  int64_t reduction, int64_t ignore_index) {
  constexpr const char* operation = "aten::nll_loss2d_forward";
  check_images(operation, self, target, weight);
  return forward(Problem(operation, self, target, weight, ignore_index), reduction);
}

Tensor nll2d_backward(const Tensor& grad, const Tensor& self, const Tensor& target,
                      const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                      const Tensor& total) {
  constexpr const char* operation = "aten::nll_loss2d_backward";
  check_images(operation, self, target, weight);
  return backward(Problem(operation, self, target, weight, ignore_index), grad, reduction, total);
}

// ---- results that the caller gives --------------------------------------------------------------

Tensor& put(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

template <auto compute>
std::tuple<Tensor&, Tensor&> forward_into(const Tensor& self, const Tensor& target,
                                          const OptionalTensor& weight, int64_t reduction,
                                          int64_t ignore_index, Tensor& out, Tensor& total) {
  const auto result = compute(self, target, weight, reduction, ignore_index);
  return {put(out, std::get<0>(result)), put(total, std::get<1>(result))};
}

template <auto compute>
Tensor& backward_into(const Tensor& grad, const Tensor& self, const Tensor& target,
                      const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                      const Tensor& total, Tensor& out) {
  return put(out, compute(grad, self, target, weight, reduction, ignore_index, total));
}

}  // namespace

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::nll_loss_forward", TORCH_FN(nll_forward));
  library.impl("aten::nll_loss_backward", TORCH_FN(nll_backward));
  library.impl("aten::nll_loss2d_forward", TORCH_FN(nll2d_forward));
  library.impl("aten::nll_loss2d_backward", TORCH_FN(nll2d_backward));
  library.impl("aten::nll_loss_forward.output", TORCH_FN((forward_into<&nll_forward>)));
  library.impl("aten::nll_loss_backward.grad_input", TORCH_FN((backward_into<&nll_backward>)));
  library.impl("aten::nll_loss2d_forward.output", TORCH_FN((forward_into<&nll2d_forward>)));
  library.impl("aten::nll_loss2d_backward.grad_input", TORCH_FN((backward_into<&nll2d_backward>)));
}

}  // namespace ruda_torch
