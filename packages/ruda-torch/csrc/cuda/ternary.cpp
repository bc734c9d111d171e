// Choices, bounds and products of several tensors on the cuda target.

#include "cuda/pointwise_forms.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/clamp_max_native.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/clamp_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp_native.h>
#include <ATen/ops/result_type.h>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

using OptionalScalar = const std::optional<Scalar>&;
using OptionalTensor = const std::optional<Tensor>&;

// ---- where, masked_fill -------------------------------------------------------------------------

bool is_number(const Tensor& tensor) { return tensor.is_cpu() && tensor.dim() == 0; }

// The number that a 0-dimensional CPU tensor is in this dtype.
Scalar number_of(const Tensor& tensor, c10::ScalarType type) {
  return at::_local_scalar_dense(tensor.to(type));
}

// `out` undefined: a new tensor.
Tensor choose(const Tensor& condition, const Tensor& self, const Tensor& other, const Tensor& out) {
  const auto type = at::result_type(self, other);
  TORCH_CHECK(!out.defined() || out.scalar_type() == type, "Expected out type to be ", type,
              " but got ", out.scalar_type());
  TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ",
              condition.scalar_type());
  stub::begin();
  const Tensor asked = is_number(condition)
                           ? condition.to((stub::on_ruda(self) ? self : other).device())
                           : condition;
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).add_owned_output(out).add_owned_const_input(asked);
  if (!out.defined()) config.declare_static_dtype(type);
  const bool number = is_number(self);
  if (!number) config.add_owned_const_input(self);
  if (!is_number(other)) config.add_owned_const_input(other);
  at::TensorIterator iterator = config.build();
  if (number && is_number(other)) {
    pointwise("where", iterator, type, {number_of(self, type), number_of(other, type)});
  } else if (number) {
    pointwise("where_not", iterator, type, {number_of(self, type)});
  } else if (is_number(other)) {
    pointwise("where", iterator, type, {number_of(other, type)});
  } else {
    pointwise("where", iterator, type);
  }
  return iterator.output();
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  return choose(condition, self, other, {});
}

Tensor& where_out(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  choose(condition, self, other, out);
  return out;
}

void launch_masked(const Tensor& result, const Tensor& mask, const Tensor& self, const Scalar& value) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
  stub::begin();
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .set_check_mem_overlap(false)
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_output(result)
                                    .add_const_input(mask)
                                    .add_const_input(self)
                                    .build();
  pointwise("where_not", iterator, self.scalar_type(), {value});
}

Tensor& fill_masked_(Tensor& self, const Tensor& mask, const Scalar& value) {
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, mask);
  const auto wide = at::expand_inplace(self, mask, "masked_fill_");
  launch_masked(self, *wide, self, value);
  return self;
}

Tensor fill_masked(const Tensor& self, const Tensor& mask, const Scalar& value) {
  const auto [wide_mask, wide_self] = at::expand_outplace(mask, self);
  const Tensor result = at::empty(wide_self->sizes(), self.options());
  launch_masked(result, *wide_mask, *wide_self, value);
  return result;
}

// A value on ruda stays there.
void check_value(const Tensor& value) {
  TORCH_CHECK(value.dim() == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
}

Tensor& fill_masked_from_(Tensor& self, const Tensor& mask, const Tensor& value) {
  check_value(value);
  if (!stub::on_ruda(value)) return fill_masked_(self, mask, number_of(value, self.scalar_type()));
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, mask);
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
  const auto wide = at::expand_inplace(self, mask, "masked_fill_");
  stub::begin();
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .set_check_mem_overlap(false)
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_output(self)
                                    .add_const_input(*wide)
                                    .add_const_input(value)
                                    .add_const_input(self)
                                    .build();
  pointwise("where", iterator, self.scalar_type());
  return self;
}

Tensor fill_masked_from(const Tensor& self, const Tensor& mask, const Tensor& value) {
  check_value(value);
  if (!stub::on_ruda(value)) return fill_masked(self, mask, number_of(value, self.scalar_type()));
  const auto [wide_mask, wide_self] = at::expand_outplace(mask, self);
  Tensor result = at::empty(wide_self->sizes(), self.options());
  device_copy(result, *wide_self);
  return fill_masked_from_(result, *wide_mask, value);
}

// ---- clamp --------------------------------------------------------------------------------------

at::OptionalScalarRef reference(OptionalScalar bound) {
  return bound.has_value() ? at::OptionalScalarRef(&*bound) : at::OptionalScalarRef();
}

at::OptionalTensorRef reference(OptionalTensor bound) {
  return bound.has_value() ? at::OptionalTensorRef(*bound) : at::OptionalTensorRef();
}

Tensor& clamp_out(const Tensor& self, OptionalScalar min, OptionalScalar max, Tensor& out) {
  return stub::write<native::structured_clamp_out>(out, self, reference(min), reference(max));
}

Tensor clamp_tensors(const Tensor& self, OptionalTensor min, OptionalTensor max) {
  return stub::make<native::structured_clamp_Tensor_out>(self, reference(min), reference(max));
}

Tensor& clamp_tensors_out(const Tensor& self, OptionalTensor min, OptionalTensor max, Tensor& out) {
  return stub::write<native::structured_clamp_Tensor_out>(out, self, reference(min),
                                                          reference(max));
}

Tensor& clamp_tensors_(Tensor& self, OptionalTensor min, OptionalTensor max) {
  return clamp_tensors_out(self, min, max, self);
}

void clamp_numbers(at::TensorIteratorBase& iterator, const Scalar& min, const Scalar& max) {
  pointwise("clamp", iterator, {min, max});
}

// ---- tensors and a factor -----------------------------------------------------------------------

void lerp(at::TensorIteratorBase& iterator, const Scalar& weight) {
  pointwise("lerp", iterator, {weight});
}

void addcmul(at::TensorIteratorBase& iterator, const Scalar& value) {
  pointwise("addcmul", iterator, {value});
}

void addcdiv(at::TensorIteratorBase& iterator, const Scalar& value) {
  pointwise("addcdiv", iterator, {value});
}

RUDA_CUDA_OPERATORS(library) {
  library.impl("aten::where.self", TORCH_FN(where));
  library.impl("aten::where.self_out", TORCH_FN(where_out));
  library.impl("aten::masked_fill.Scalar", TORCH_FN(fill_masked));
  library.impl("aten::masked_fill_.Scalar", TORCH_FN(fill_masked_));
  library.impl("aten::masked_fill.Tensor", TORCH_FN(fill_masked_from));
  library.impl("aten::masked_fill_.Tensor", TORCH_FN(fill_masked_from_));

  stub::use_on_cuda<native::clamp_scalar_stub>(&clamp_numbers);
  stub::use_on_cuda<native::clamp_min_scalar_stub>(
      [](at::TensorIteratorBase& iterator, Scalar min) { pointwise("maximum", iterator, {min}); });
  stub::use_on_cuda<native::clamp_max_scalar_stub>(
      [](at::TensorIteratorBase& iterator, Scalar max) { pointwise("minimum", iterator, {max}); });
  stub::use_only_on_cuda<native::clamp_stub>(RUDA_POINTWISE("clamp"));
  library.impl("aten::clamp.out", TORCH_FN(clamp_out));
  library.impl("aten::clamp.Tensor", TORCH_FN(clamp_tensors));
  library.impl("aten::clamp_.Tensor", TORCH_FN(clamp_tensors_));
  library.impl("aten::clamp.Tensor_out", TORCH_FN(clamp_tensors_out));
  add_forms<native::structured_clamp_min_out, const Tensor&, const Scalar&>(
      library, nullptr, nullptr, "aten::clamp_min.out");
  add_forms<native::structured_clamp_max_out, const Tensor&, const Scalar&>(
      library, "aten::clamp_max", "aten::clamp_max_", "aten::clamp_max.out");
  add_forms<native::structured_clamp_min_Tensor_out, const Tensor&, const Tensor&>(
      library, "aten::clamp_min.Tensor", "aten::clamp_min_.Tensor", "aten::clamp_min.Tensor_out");
  add_forms<native::structured_clamp_max_Tensor_out, const Tensor&, const Tensor&>(
      library, "aten::clamp_max.Tensor", "aten::clamp_max_.Tensor", "aten::clamp_max.Tensor_out");

  stub::use_on_cuda<native::addcmul_stub>(&addcmul);
  stub::use_on_cuda<native::addcdiv_stub>(&addcdiv);
  stub::use_on_cuda<native::lerp_kernel_scalar_weight>(&lerp);
  stub::use_only_on_cuda<native::lerp_kernel_tensor_weight>(RUDA_POINTWISE("lerp"));
  add_forms<native::structured_lerp_Scalar, const Tensor&, const Tensor&, const Scalar&>(
      library, nullptr, nullptr, "aten::lerp.Scalar_out");
  add_forms<native::structured_lerp_Tensor, const Tensor&, const Tensor&, const Tensor&>(
      library, "aten::lerp.Tensor", "aten::lerp_.Tensor", "aten::lerp.Tensor_out");
}

}  // namespace

}  // namespace ruda_torch::cuda
