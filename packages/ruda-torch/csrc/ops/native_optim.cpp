// ruda::adamw_step_, ruda::unscale_gradients_ and ruda::gradient_norm: lists of tensors in one launch.

#include "native_launch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ruda/dnn.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace ruda_torch {

namespace {

using at::Tensor;
using at::TensorList;

// Autograd must see that the tensor has changed, as after any in-place operator.
void mark_changed(TensorList tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

std::vector<const ruda_view*> flat_views(Views& views, TensorList tensors, const char* argument) {
  std::vector<const ruda_view*> result;
  result.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    result.push_back(views.flat(tensors[i], argument, static_cast<int64_t>(i)));
  }
  return result;
}

// The kernel walks memory in order, so all tensors of one parameter need one layout.
Tensor in_layout_of(const Tensor& parameter, const Tensor& gradient) {
  if (gradient.strides() == parameter.strides()) return gradient;
  Tensor copy = at::empty_like(parameter, parameter.options().dtype(gradient.scalar_type()));
  copy.copy_(gradient);
  return copy;
}

void adamw_step(TensorList parameters, TensorList gradients, TensorList masters,
                TensorList first_moments, TensorList second_moments, int64_t step,
                double learning_rate, double beta1, double beta2, double epsilon,
                double weight_decay, double gradient_scale) {
  static const Kernel kernel("adamw.step", ruda::adamw_step_args_layout);
  const size_t count = parameters.size();
  TORCH_CHECK_VALUE(gradients.size() == count && masters.size() == count &&
                        first_moments.size() == count && second_moments.size() == count,
                    "[adamw_step_] got ", count, " parameters, ", gradients.size(),
                    " gradients, ", masters.size(), " masters, ", first_moments.size(), " and ",
                    second_moments.size(), " moments, wanted one of each for every parameter");
  std::vector<Tensor> matching;
  matching.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const Tensor& parameter = parameters[i];
    for (const Tensor& state : {masters[i], first_moments[i], second_moments[i]}) {
      TORCH_CHECK_VALUE(state.sizes() == parameter.sizes() &&
                            state.strides() == parameter.strides(),
                        "[adamw_step_] state of parameters[", i, "]: got shape ", state.sizes(),
                        " and strides ", state.strides(), ", wanted the parameter's ",
                        parameter.sizes(), " and ", parameter.strides());
    }
    TORCH_CHECK_VALUE(gradients[i].sizes() == parameter.sizes(), "[adamw_step_] gradients[", i,
                      "]: got shape ", gradients[i].sizes(), ", wanted ", parameter.sizes());
    matching.push_back(in_layout_of(parameter, gradients[i]));
  }
  Views views("adamw_step_");
  const auto parameter_views = flat_views(views, parameters, "parameters");
  const auto gradient_views = flat_views(views, matching, "gradients");
  auto master_views = flat_views(views, masters, "masters");
  for (size_t i = 0; i < count; ++i) {
    if (masters[i].is_same(parameters[i])) master_views[i] = nullptr;
  }
  const auto first_views = flat_views(views, first_moments, "first_moments");
  const auto second_views = flat_views(views, second_moments, "second_moments");
  const ruda::adamw_step_args args{parameter_views.data(),
                                   gradient_views.data(),
                                   master_views.data(),
                                   first_views.data(),
                                   second_views.data(),
                                   static_cast<int64_t>(count),
                                   step,
                                   learning_rate,
                                   beta1,
                                   beta2,
                                   epsilon,
                                   weight_decay,
                                   gradient_scale};
  kernel.launch(&args);
  mark_changed(parameters);
  mark_changed(masters);
  mark_changed(first_moments);
  mark_changed(second_moments);
}

// The device of the results: that of the gradients.
at::TensorOptions result_options(TensorList gradients, const char* operation) {
  TORCH_CHECK_VALUE(!gradients.empty(), "[", operation, "] gradients: got an empty list");
  return gradients[0].options();
}

Tensor unscale_gradients(TensorList gradients, double scale) {
  static const Kernel kernel("gradient.unscale", ruda::gradient_unscale_args_layout);
  Tensor finite = at::empty({}, result_options(gradients, "unscale_gradients_").dtype(at::kInt));
  Views views("unscale_gradients_");
  const auto list = flat_views(views, gradients, "gradients");
  const ruda::gradient_unscale_args args{list.data(), static_cast<int64_t>(list.size()), scale,
                                         finite.mutable_data_ptr<int32_t>()};
  kernel.launch(&args);
  if (scale != 1.0) mark_changed(gradients);
  return finite;
}

std::tuple<Tensor, Tensor> gradient_norm(TensorList gradients, double scale) {
  static const Kernel kernel("gradient.norm", ruda::gradient_norm_args_layout);
  const auto options = result_options(gradients, "gradient_norm");
  Tensor norm = at::empty({}, options.dtype(at::kDouble));
  Tensor finite = at::empty({}, options.dtype(at::kInt));
  Views views("gradient_norm");
  const auto list = flat_views(views, gradients, "gradients");
  const ruda::gradient_norm_args args{list.data(), static_cast<int64_t>(list.size()), scale,
                                      norm.mutable_data_ptr<double>(),
                                      finite.mutable_data_ptr<int32_t>()};
  kernel.launch(&args);
  return {std::move(norm), std::move(finite)};
}

void adamw_step_meta(TensorList parameters, TensorList gradients, TensorList masters,
                     TensorList first_moments, TensorList second_moments, int64_t step,
                     double learning_rate, double beta1, double beta2, double epsilon,
                     double weight_decay, double gradient_scale) {}

Tensor unscale_gradients_meta(TensorList gradients, double scale) {
  return at::empty({}, result_options(gradients, "unscale_gradients_").dtype(at::kInt));
}

std::tuple<Tensor, Tensor> gradient_norm_meta(TensorList gradients, double scale) {
  const auto options = result_options(gradients, "gradient_norm");
  return {at::empty({}, options.dtype(at::kDouble)), at::empty({}, options.dtype(at::kInt))};
}

}  // namespace

TORCH_LIBRARY_IMPL(ruda, PrivateUse1, m) {
  m.impl("adamw_step_", &adamw_step);
  m.impl("unscale_gradients_", &unscale_gradients);
  m.impl("gradient_norm", &gradient_norm);
}

TORCH_LIBRARY_IMPL(ruda, Meta, m) {
  m.impl("adamw_step_", &adamw_step_meta);
  m.impl("unscale_gradients_", &unscale_gradients_meta);
  m.impl("gradient_norm", &gradient_norm_meta);
}

}  // namespace ruda_torch
