// Activations and their gradients on the cuda target.

#include "cuda/pointwise_forms.h"

#include <ATen/native/Activation.h>
#include <ATen/ops/_prelu_kernel_native.h>
#include <ATen/ops/celu_native.h>
#include <ATen/ops/elu_backward_native.h>
#include <ATen/ops/elu_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu_backward_native.h>
#include <ATen/ops/gelu_native.h>
#include <ATen/ops/glu_backward_native.h>
#include <ATen/ops/glu_native.h>
#include <ATen/ops/hardshrink_backward_native.h>
#include <ATen/ops/hardshrink_native.h>
#include <ATen/ops/hardsigmoid_backward_native.h>
#include <ATen/ops/hardsigmoid_native.h>
#include <ATen/ops/hardswish_backward_native.h>
#include <ATen/ops/hardswish_native.h>
#include <ATen/ops/hardtanh_backward_native.h>
#include <ATen/ops/hardtanh_native.h>
#include <ATen/ops/leaky_relu_backward_native.h>
#include <ATen/ops/leaky_relu_native.h>
#include <ATen/ops/mish_backward_native.h>
#include <ATen/ops/mish_native.h>
#include <ATen/ops/softplus_backward_native.h>
#include <ATen/ops/softplus_native.h>
#include <ATen/ops/softshrink_backward_native.h>
#include <ATen/ops/softshrink_native.h>
#include <ATen/ops/threshold_backward_native.h>
#include <ATen/ops/threshold_native.h>

#include <tuple>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

// ---- gelu: ATen's CPU implementation may leave it to oneDNN -------------------------------------

const char* gelu_name(c10::string_view approximate) {
  return native::get_gelutype_enum(approximate) == native::GeluType::Tanh ? "gelu_tanh" : "gelu";
}

const char* gelu_backward_name(c10::string_view approximate) {
  return native::get_gelutype_enum(approximate) == native::GeluType::Tanh ? "gelu_tanh_backward"
                                                                         : "gelu_backward";
}

Tensor gelu(const Tensor& self, c10::string_view approximate) {
  return make<native::structured_gelu_out_cpu>(gelu_name(approximate), {}, self, approximate);
}

Tensor& gelu_out(const Tensor& self, c10::string_view approximate, Tensor& out) {
  return write<native::structured_gelu_out_cpu>(gelu_name(approximate), {}, out, self, approximate);
}

Tensor& gelu_(Tensor& self, c10::string_view approximate) {
  return gelu_out(self, approximate, self);
}

Tensor gelu_backward(const Tensor& grad, const Tensor& self, c10::string_view approximate) {
  return make<native::structured_gelu_backward_out_cpu>(gelu_backward_name(approximate), {}, grad,
                                                        self, approximate);
}

Tensor& gelu_backward_out(const Tensor& grad, const Tensor& self, c10::string_view approximate,
                          Tensor& out) {
  return write<native::structured_gelu_backward_out_cpu>(gelu_backward_name(approximate), {}, out,
                                                         grad, self, approximate);
}

// ---- log_sigmoid: without the CPU's buffer of exponentials --------------------------------------

std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& self) {
  stub::begin();
  Tensor result;
  at::TensorIterator iterator = at::TensorIterator::unary_op(result, self);
  pointwise("log_sigmoid", iterator, self.scalar_type());
  return {iterator.output(), at::empty({0}, self.options())};
}

std::tuple<Tensor&, Tensor&> log_sigmoid_forward_out(const Tensor& self, Tensor& out,
                                                     Tensor& buffer) {
  stub::begin();
  at::TensorIterator iterator = at::TensorIterator::unary_op(out, self);
  pointwise("log_sigmoid", iterator, self.scalar_type());
  return {out, buffer};
}

Tensor log_sigmoid_backward(const Tensor& grad, const Tensor& self, const Tensor& /*buffer*/) {
  stub::begin();
  Tensor result;
  at::TensorIterator iterator = at::TensorIterator::borrowing_binary_op(result, grad, self);
  pointwise("log_sigmoid_backward", iterator);
  return iterator.output();
}

// ---- prelu --------------------------------------------------------------------------------------

// The gradients of the tensor and, of its sizes, of the slope.
std::tuple<Tensor, Tensor> prelu_backward(const Tensor& grad, const Tensor& self,
                                          const Tensor& slope) {
  stub::begin();
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .add_owned_output(Tensor())
                                    .add_const_input(self)
                                    .add_const_input(grad)
                                    .add_const_input(slope)
                                    .build();
  pointwise("leaky_relu_backward", iterator);
  Tensor result;
  at::TensorIterator of_slope = at::TensorIterator::borrowing_binary_op(result, grad, self);
  pointwise("slope_backward", of_slope);
  return {iterator.output(), of_slope.output()};
}

// ---- kernel tables ------------------------------------------------------------------------------

void threshold(at::TensorIteratorBase& iterator, const Scalar& bound, const Scalar& value) {
  pointwise("threshold", iterator, {bound, value});
}

void softplus(at::TensorIteratorBase& iterator, const Scalar& beta, const Scalar& bound) {
  pointwise("softplus", iterator, {beta, bound});
}

void softplus_backward(at::TensorIteratorBase& iterator, const Scalar& beta, const Scalar& bound) {
  pointwise("softplus_backward", iterator, {beta, bound});
}

void elu(at::TensorIteratorBase& iterator, const Scalar& alpha, const Scalar& scale,
         const Scalar& input_scale) {
  pointwise("elu", iterator, {alpha, scale, input_scale});
}

void elu_backward(at::TensorIteratorBase& iterator, const Scalar& alpha, const Scalar& scale,
                  const Scalar& input_scale, bool is_result) {
  pointwise(is_result ? "elu_backward_of_result" : "elu_backward", iterator,
            {alpha, scale, input_scale});
}

void leaky_relu(at::TensorIteratorBase& iterator, const Scalar& slope) {
  pointwise("leaky_relu", iterator, {slope});
}

void leaky_relu_backward(at::TensorIteratorBase& iterator, const Scalar& slope) {
  pointwise("leaky_relu_backward", iterator, {slope});
}

void hardtanh_backward(at::TensorIterator& iterator, const Scalar& min, const Scalar& max) {
  pointwise("hardtanh_backward", iterator, {min, max});
}

void hardshrink(at::TensorIteratorBase& iterator, const Scalar& bound) {
  pointwise("hardshrink", iterator, {bound});
}

void softshrink(at::TensorIteratorBase& iterator, const Scalar& bound) {
  pointwise("softshrink", iterator, {bound});
}

void shrink_backward(at::TensorIteratorBase& iterator, const Scalar& bound) {
  pointwise("shrink_backward", iterator, {bound});
}

// Operators of the families hard..., glu, shrink and prelu.
void add_rare(CudaOperators& library) {
  stub::use_only_on_cuda<native::hardsigmoid_stub>(RUDA_POINTWISE("hardsigmoid"));
  stub::use_only_on_cuda<native::hardsigmoid_backward_stub>(RUDA_POINTWISE("hardsigmoid_backward"));
  stub::use_only_on_cuda<native::hardswish_stub>(RUDA_POINTWISE("hardswish"));
  stub::use_only_on_cuda<native::hardswish_backward_stub>(RUDA_POINTWISE("hardswish_backward"));
  stub::use_only_on_cuda<native::glu_stub>(RUDA_POINTWISE("glu"));
  stub::use_only_on_cuda<native::glu_backward_stub>(RUDA_POINTWISE("glu_backward"));
  stub::use_only_on_cuda<native::hardshrink_stub>(&hardshrink);
  stub::use_only_on_cuda<native::softshrink_stub>(&softshrink);
  stub::use_only_on_cuda<native::shrink_backward_stub>(&shrink_backward);
  stub::use_only_on_cuda<native::prelu_stub>(RUDA_POINTWISE("leaky_relu"));

  add_forms<native::structured_hardsigmoid_out, const Tensor&>(
      library, "aten::hardsigmoid", "aten::hardsigmoid_", "aten::hardsigmoid.out");
  add_forms<native::structured_hardsigmoid_backward_out, const Tensor&, const Tensor&>(
      library, "aten::hardsigmoid_backward", nullptr, "aten::hardsigmoid_backward.grad_input");
  library.impl("aten::hardswish", TORCH_FN(native::hardswish));
  library.impl("aten::hardswish_", TORCH_FN(native::hardswish_));
  library.impl("aten::hardswish.out", TORCH_FN(native::hardswish_out));
  library.impl("aten::hardswish_backward", TORCH_FN(native::hardswish_backward));
  add_forms<native::structured_glu_out, const Tensor&, int64_t>(library, "aten::glu", nullptr,
                                                                "aten::glu.out");
  library.impl("aten::glu_backward", TORCH_FN(native::glu_backward_cpu));
  library.impl("aten::glu_backward.grad_input", TORCH_FN(native::glu_backward_cpu_out));
  add_forms<native::structured_hardshrink_out, const Tensor&, const Scalar&>(
      library, "aten::hardshrink", nullptr, "aten::hardshrink.out");
  add_forms<native::structured_hardshrink_backward_out, const Tensor&, const Tensor&,
            const Scalar&>(library, "aten::hardshrink_backward", nullptr,
                           "aten::hardshrink_backward.grad_input");
  add_forms<native::structured_softshrink_out, const Tensor&, const Scalar&>(
      library, "aten::softshrink", nullptr, "aten::softshrink.out");
  add_forms<native::structured_softshrink_backward_out, const Tensor&, const Tensor&,
            const Scalar&>(library, "aten::softshrink_backward", nullptr,
                           "aten::softshrink_backward.grad_input");
  library.impl("aten::_prelu_kernel", TORCH_FN(native::_prelu_kernel));
  library.impl("aten::_prelu_kernel_backward", TORCH_FN(prelu_backward));
}

RUDA_CUDA_OPERATORS(library) {
  add_rare(library);
  stub::use_on_cuda<native::silu_stub>(RUDA_POINTWISE("silu"));
  stub::use_on_cuda<native::threshold_stub>(&threshold);
  stub::use_only_on_cuda<native::silu_backward_stub>(RUDA_POINTWISE("silu_backward"));
  stub::use_only_on_cuda<native::mish_stub>(RUDA_POINTWISE("mish"));
  stub::use_only_on_cuda<native::mish_backward_stub>(RUDA_POINTWISE("mish_backward"));
  stub::use_only_on_cuda<native::softplus_stub>(&softplus);
  stub::use_only_on_cuda<native::softplus_backward_stub>(&softplus_backward);
  stub::use_only_on_cuda<native::elu_stub>(&elu);
  stub::use_only_on_cuda<native::elu_backward_stub>(&elu_backward);
  stub::use_only_on_cuda<native::leaky_relu_stub>(&leaky_relu);
  stub::use_only_on_cuda<native::leaky_relu_backward_stub>(&leaky_relu_backward);
  stub::use_only_on_cuda<native::hardtanh_backward_stub>(&hardtanh_backward);

  library.impl("aten::gelu", TORCH_FN(gelu));
  library.impl("aten::gelu_", TORCH_FN(gelu_));
  library.impl("aten::gelu.out", TORCH_FN(gelu_out));
  library.impl("aten::gelu_backward", TORCH_FN(gelu_backward));
  library.impl("aten::gelu_backward.grad_input", TORCH_FN(gelu_backward_out));
  library.impl("aten::log_sigmoid_forward", TORCH_FN(log_sigmoid_forward));
  library.impl("aten::log_sigmoid_forward.output", TORCH_FN(log_sigmoid_forward_out));
  library.impl("aten::log_sigmoid_backward", TORCH_FN(log_sigmoid_backward));
  library.impl("aten::celu", TORCH_FN(native::celu));
  library.impl("aten::celu_", TORCH_FN(native::celu_));
  library.impl("aten::hardtanh", TORCH_FN(native::hardtanh));
  library.impl("aten::hardtanh_", TORCH_FN(native::hardtanh_));
  library.impl("aten::hardtanh.out", TORCH_FN(native::hardtanh_out));
  library.impl("aten::hardtanh_backward", TORCH_FN(native::hardtanh_backward));
  library.impl("aten::hardtanh_backward.grad_input", TORCH_FN(native::hardtanh_backward_out));

  add_forms<native::structured_mish_out, const Tensor&>(library, "aten::mish", "aten::mish_",
                                                        "aten::mish.out");
  add_forms<native::structured_softplus_out, const Tensor&, const Scalar&, const Scalar&>(
      library, "aten::softplus", nullptr, "aten::softplus.out");
  add_forms<native::structured_softplus_backward_out, const Tensor&, const Tensor&, const Scalar&,
            const Scalar&>(library, "aten::softplus_backward", nullptr,
                           "aten::softplus_backward.grad_input");
  add_forms<native::structured_elu_out, const Tensor&, const Scalar&, const Scalar&, const Scalar&>(
      library, "aten::elu", "aten::elu_", "aten::elu.out");
  add_forms<native::structured_elu_backward_out, const Tensor&, const Scalar&, const Scalar&,
            const Scalar&, bool, const Tensor&>(library, "aten::elu_backward", nullptr,
                                                "aten::elu_backward.grad_input");
  add_forms<native::structured_leaky_relu_out, const Tensor&, const Scalar&>(
      library, "aten::leaky_relu", "aten::leaky_relu_", "aten::leaky_relu.out");
  add_forms<native::structured_leaky_relu_backward_out, const Tensor&, const Tensor&, const Scalar&,
            bool>(library, "aten::leaky_relu_backward", nullptr,
                  "aten::leaky_relu_backward.grad_input");
  add_forms<native::structured_threshold_out, const Tensor&, const Scalar&, const Scalar&>(
      library, "aten::threshold", "aten::threshold_", "aten::threshold.out");
  add_forms<native::structured_threshold_backward_out, const Tensor&, const Tensor&, const Scalar&>(
      library, nullptr, nullptr, "aten::threshold_backward.grad_input");
}

}  // namespace

}  // namespace ruda_torch::cuda
