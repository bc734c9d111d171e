/* The Python module `ruda_dnn._native`: registers the kernels and launches them over Tensors. */
#include <ruda/dnn.h>
#include <ruda/python.hpp>

#include <string>
#include <vector>

#include "entries.hpp"

namespace {

namespace py = pybind11;
using ruda::python::error_classes;
using ruda::python::launch;
using ruda::python::optional_view_of;
using ruda::python::view_of;

/* The classes of ruda_dnn.errors; they live as long as the process. */
error_classes classes(const char* family) {
  const py::module_ errors = py::module_::import("ruda_dnn.errors");
  const std::string name(family);
  return {py::object(errors.attr((name + "Error").c_str())).release(),
          py::object(errors.attr((name + "TypeError").c_str())).release(), {}};
}

void rms_norm_forward(py::handle x, py::handle weight, py::handle y, py::handle rstd,
                      double epsilon) {
  static const error_classes errors = classes("Normalization");
  const char* operation = "rms_norm";
  const ruda::rms_norm_forward_args args{
      view_of(x, operation, "x", errors), optional_view_of(weight, operation, "weight", errors),
      view_of(y, operation, "y", errors), optional_view_of(rstd, operation, "rstd", errors),
      epsilon};
  launch("rms_norm.forward", ruda::rms_norm_forward_args_layout, &args, errors);
}

void rms_norm_backward(py::handle x, py::handle weight, py::handle grad, py::handle rstd,
                       py::handle dx, py::handle dweight, int64_t parts) {
  static const error_classes errors = classes("Normalization");
  const char* operation = "rms_norm_backward";
  const ruda::rms_norm_backward_args args{
      view_of(x, operation, "x", errors),
      optional_view_of(weight, operation, "weight", errors),
      view_of(grad, operation, "grad", errors),
      view_of(rstd, operation, "rstd", errors),
      optional_view_of(dx, operation, "dx", errors),
      optional_view_of(dweight, operation, "dweight", errors),
      parts};
  launch("rms_norm.backward", ruda::rms_norm_backward_args_layout, &args, errors);
}

void layer_norm_forward(py::handle x, py::handle weight, py::handle bias, py::handle y,
                        py::handle mean, py::handle rstd, double epsilon) {
  static const error_classes errors = classes("Normalization");
  const char* operation = "layer_norm";
  const ruda::layer_norm_forward_args args{view_of(x, operation, "x", errors),
                                           optional_view_of(weight, operation, "weight", errors),
                                           optional_view_of(bias, operation, "bias", errors),
                                           view_of(y, operation, "y", errors),
                                           optional_view_of(mean, operation, "mean", errors),
                                           optional_view_of(rstd, operation, "rstd", errors),
                                           epsilon};
  launch("layer_norm.forward", ruda::layer_norm_forward_args_layout, &args, errors);
}

void layer_norm_backward(py::handle x, py::handle weight, py::handle grad, py::handle mean,
                         py::handle rstd, py::handle dx, py::handle dweight, py::handle dbias,
                         int64_t parts) {
  static const error_classes errors = classes("Normalization");
  const char* operation = "layer_norm_backward";
  const ruda::layer_norm_backward_args args{
      view_of(x, operation, "x", errors),
      optional_view_of(weight, operation, "weight", errors),
      view_of(grad, operation, "grad", errors),
      view_of(mean, operation, "mean", errors),
      view_of(rstd, operation, "rstd", errors),
      optional_view_of(dx, operation, "dx", errors),
      optional_view_of(dweight, operation, "dweight", errors),
      optional_view_of(dbias, operation, "dbias", errors),
      parts};
  launch("layer_norm.backward", ruda::layer_norm_backward_args_layout, &args, errors);
}

void softmax_forward(py::handle x, py::handle y, int64_t axis, bool logarithm) {
  static const error_classes errors = classes("Softmax");
  const char* operation = logarithm ? "log_softmax" : "softmax";
  const ruda::softmax_forward_args args{view_of(x, operation, "x", errors),
                                        view_of(y, operation, "y", errors), axis, logarithm};
  launch("softmax.forward", ruda::softmax_forward_args_layout, &args, errors);
}

void softmax_backward(py::handle grad, py::handle y, py::handle dx, int64_t axis, bool logarithm) {
  static const error_classes errors = classes("Softmax");
  const char* operation = logarithm ? "log_softmax_backward" : "softmax_backward";
  const ruda::softmax_backward_args args{view_of(grad, operation, "grad", errors),
                                         view_of(y, operation, "y", errors),
                                         view_of(dx, operation, "dx", errors), axis, logarithm};
  launch("softmax.backward", ruda::softmax_backward_args_layout, &args, errors);
}

void silu_mul_forward(py::handle gate, py::handle up, py::handle out) {
  static const error_classes errors = classes("Activation");
  const char* operation = "silu_mul";
  const ruda::silu_mul_forward_args args{view_of(gate, operation, "gate", errors),
                                         view_of(up, operation, "up", errors),
                                         view_of(out, operation, "out", errors)};
  launch("silu_mul.forward", ruda::silu_mul_forward_args_layout, &args, errors);
}

void silu_mul_backward(py::handle gate, py::handle up, py::handle grad, py::handle dgate,
                       py::handle dup) {
  static const error_classes errors = classes("Activation");
  const char* operation = "silu_mul_backward";
  const ruda::silu_mul_backward_args args{
      view_of(gate, operation, "gate", errors), view_of(up, operation, "up", errors),
      view_of(grad, operation, "grad", errors),
      optional_view_of(dgate, operation, "dgate", errors),
      optional_view_of(dup, operation, "dup", errors)};
  launch("silu_mul.backward", ruda::silu_mul_backward_args_layout, &args, errors);
}

void linear_cross_entropy(py::handle hidden, py::handle head, py::handle bias, py::handle target,
                          py::handle loss, py::handle count, py::handle dhidden, py::handle dhead,
                          py::handle dbias, int64_t token_chunk, int64_t ignore_index) {
  static const error_classes errors = classes("Loss");
  const char* operation = "linear_cross_entropy";
  const ruda::linear_cross_entropy_args args{
      view_of(hidden, operation, "hidden", errors),
      view_of(head, operation, "head", errors),
      optional_view_of(bias, operation, "bias", errors),
      view_of(target, operation, "target", errors),
      view_of(loss, operation, "loss", errors),
      view_of(count, operation, "count", errors),
      optional_view_of(dhidden, operation, "dhidden", errors),
      optional_view_of(dhead, operation, "dhead", errors),
      optional_view_of(dbias, operation, "dbias", errors),
      token_chunk,
      ignore_index};
  launch("linear_cross_entropy.forward", ruda::linear_cross_entropy_args_layout, &args, errors);
}

void rotary(const char* kernel, const char* operation, const char* name, py::handle x,
            py::handle cos, py::handle sin, py::handle y) {
  static const error_classes errors = classes("Rotary");
  const ruda::rotary_args args{view_of(x, operation, name, errors),
                               view_of(cos, operation, "cos", errors),
                               view_of(sin, operation, "sin", errors),
                               view_of(y, operation, "y", errors)};
  launch(kernel, ruda::rotary_args_layout, &args, errors);
}

void rotary_forward(py::handle x, py::handle cos, py::handle sin, py::handle y) {
  rotary("rotary.forward", "rotary", "x", x, cos, sin, y);
}

void rotary_backward(py::handle grad, py::handle cos, py::handle sin, py::handle dx) {
  rotary("rotary.backward", "rotary_backward", "grad", grad, cos, sin, dx);
}

using views = std::vector<const ruda_view*>;

views list_of(const py::sequence& tensors, const char* operation, const char* name,
              const error_classes& errors) {
  views result;
  result.reserve(tensors.size());
  for (const py::handle tensor : tensors) {
    result.push_back(optional_view_of(tensor, operation, name, errors));
  }
  return result;
}

void adamw_step(const py::sequence& parameters, const py::sequence& gradients,
                const py::sequence& masters, const py::sequence& first_moments,
                const py::sequence& second_moments, int64_t step, double learning_rate,
                double beta1, double beta2, double epsilon, double weight_decay,
                double gradient_scale) {
  static const error_classes errors = classes("Optimizer");
  const char* operation = "adamw.step";
  const views parameter = list_of(parameters, operation, "parameters", errors);
  const views gradient = list_of(gradients, operation, "gradients", errors);
  const views master = list_of(masters, operation, "masters", errors);
  const views first = list_of(first_moments, operation, "first_moments", errors);
  const views second = list_of(second_moments, operation, "second_moments", errors);
  const size_t count = parameter.size();
  if (gradient.size() != count || master.size() != count || first.size() != count ||
      second.size() != count) {
    ruda_error error{};
    ruda::fail(&error, RUDA_ERROR_VALUE,
               "[%s] got %zu parameters, %zu gradients, %zu masters, %zu and %zu moments, wanted one "
               "of each for every parameter",
               operation, count, gradient.size(), master.size(), first.size(), second.size());
    ruda::python::throw_error(error, errors);
  }
  const ruda::adamw_step_args args{parameter.data(), gradient.data(), master.data(), first.data(),
                                   second.data(), static_cast<int64_t>(count), step, learning_rate,
                                   beta1, beta2, epsilon, weight_decay, gradient_scale};
  launch("adamw.step", ruda::adamw_step_args_layout, &args, errors);
}

bool unscale(const py::sequence& gradients, double scale) {
  static const error_classes errors = classes("Optimizer");
  const views list = list_of(gradients, "gradient.unscale", "gradients", errors);
  int32_t finite = 0;
  const ruda::gradient_unscale_args args{list.data(), static_cast<int64_t>(list.size()), scale,
                                         &finite};
  launch("gradient.unscale", ruda::gradient_unscale_args_layout, &args, errors);
  return finite != 0;
}

py::tuple norm(const py::sequence& gradients, double scale) {
  static const error_classes errors = classes("Optimizer");
  const views list = list_of(gradients, "gradient.norm", "gradients", errors);
  double value = 0.0;
  int32_t finite = 0;
  const ruda::gradient_norm_args args{list.data(), static_cast<int64_t>(list.size()), scale, &value,
                                      &finite};
  launch("gradient.norm", ruda::gradient_norm_args_layout, &args, errors);
  return py::make_tuple(value, finite != 0);
}

void attention_forward(py::handle q, py::handle k, py::handle v, py::handle mask,
                       py::handle cu_seqlens_q, py::handle cu_seqlens_k, py::handle out,
                       py::handle lse, double scale, int64_t window_left, int64_t window_right,
                       bool bottom_right) {
  static const error_classes errors = classes("Attention");
  const char* operation = "attention";
  const ruda::attention_forward_args args{
      view_of(q, operation, "q", errors),
      view_of(k, operation, "k", errors),
      view_of(v, operation, "v", errors),
      optional_view_of(mask, operation, "mask", errors),
      optional_view_of(cu_seqlens_q, operation, "cu_seqlens_q", errors),
      optional_view_of(cu_seqlens_k, operation, "cu_seqlens_k", errors),
      view_of(out, operation, "out", errors),
      optional_view_of(lse, operation, "lse", errors),
      scale,
      window_left,
      window_right,
      bottom_right ? 1 : 0};
  launch("attention.forward", ruda::attention_forward_args_layout, &args, errors);
}

void attention_backward(py::handle q, py::handle k, py::handle v, py::handle mask,
                        py::handle cu_seqlens_q, py::handle cu_seqlens_k, py::handle out,
                        py::handle lse, py::handle grad, py::handle dq, py::handle dk,
                        py::handle dv, double scale, int64_t window_left, int64_t window_right,
                        bool bottom_right) {
  static const error_classes errors = classes("Attention");
  const char* operation = "attention_backward";
  const ruda::attention_backward_args args{
      view_of(q, operation, "q", errors),
      view_of(k, operation, "k", errors),
      view_of(v, operation, "v", errors),
      optional_view_of(mask, operation, "mask", errors),
      optional_view_of(cu_seqlens_q, operation, "cu_seqlens_q", errors),
      optional_view_of(cu_seqlens_k, operation, "cu_seqlens_k", errors),
      view_of(out, operation, "out", errors),
      view_of(lse, operation, "lse", errors),
      view_of(grad, operation, "grad", errors),
      optional_view_of(dq, operation, "dq", errors),
      optional_view_of(dk, operation, "dk", errors),
      optional_view_of(dv, operation, "dv", errors),
      scale,
      window_left,
      window_right,
      bottom_right ? 1 : 0};
  launch("attention.backward", ruda::attention_backward_args_layout, &args, errors);
}

void register_all() {
  ruda_error error{};
  ruda::python::check(ruda::register_normalization(&error), error);
  ruda::python::check(ruda::register_activation(&error), error);
  ruda::python::check(ruda::register_loss(&error), error);
  ruda::python::check(ruda::register_rotary(&error), error);
  ruda::python::check(ruda::register_softmax(&error), error);
  ruda::python::check(ruda::register_optim(&error), error);
  ruda::python::check(ruda::register_attention(&error), error);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  ruda::python::attach(module, "ruda_dnn");
  register_all();
  module.def("rms_norm_forward", &rms_norm_forward);
  module.def("rms_norm_backward", &rms_norm_backward);
  module.def("layer_norm_forward", &layer_norm_forward);
  module.def("layer_norm_backward", &layer_norm_backward);
  module.def("softmax_forward", &softmax_forward);
  module.def("softmax_backward", &softmax_backward);
  module.def("silu_mul_forward", &silu_mul_forward);
  module.def("silu_mul_backward", &silu_mul_backward);
  module.def("linear_cross_entropy", &linear_cross_entropy);
  module.def("rotary_forward", &rotary_forward);
  module.def("rotary_backward", &rotary_backward);
  module.def("adamw_step", &adamw_step);
  module.def("unscale_gradients", &unscale);
  module.def("gradient_norm", &norm);
  module.def("attention_forward", &attention_forward);
  module.def("attention_backward", &attention_backward);
}
