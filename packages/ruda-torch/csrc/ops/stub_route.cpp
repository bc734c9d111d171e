#include "stub_route.h"

#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/TypeCast.h>

namespace ruda_torch::stub {

namespace {

bool holds(c10::ScalarType type, c10::ScalarType number) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
      return number == at::kDouble || number == at::kLong || number == at::kBool;
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
      return number == at::kLong || number == at::kBool;
    default:
      return false;
  }
}

// One tensor for a thread and dtype, made again while somebody holds the last one.
Tensor& slot(c10::ScalarType type) {
  thread_local Tensor slots[static_cast<size_t>(c10::ScalarType::NumOptions)];
  Tensor& kept = slots[static_cast<size_t>(type)];
  if (!kept.defined() || kept.use_count() != 1) {
    kept = at::detail::empty_generic({}, c10::GetCPUAllocator(),
                                     c10::DispatchKeySet(c10::DispatchKey::CPU), type,
                                     std::nullopt);
  }
  return kept;
}

template <class From>
const Tensor* put(From value, c10::ScalarType type) {
  Tensor& tensor = slot(type);
  void* memory = tensor.mutable_data_ptr();
  switch (type) {
    case at::kFloat: *static_cast<float*>(memory) = c10::convert<float>(value); break;
    case at::kDouble: *static_cast<double*>(memory) = c10::convert<double>(value); break;
    case at::kLong: *static_cast<int64_t*>(memory) = c10::convert<int64_t>(value); break;
    case at::kInt: *static_cast<int32_t*>(memory) = c10::convert<int32_t>(value); break;
    case at::kShort: *static_cast<int16_t*>(memory) = c10::convert<int16_t>(value); break;
    case at::kChar: *static_cast<int8_t*>(memory) = c10::convert<int8_t>(value); break;
    case at::kByte: *static_cast<uint8_t*>(memory) = c10::convert<uint8_t>(value); break;
    default: return nullptr;
  }
  return &tensor;
}

}  // namespace

void resize_result(const Tensor& result, at::IntArrayRef sizes, at::IntArrayRef strides,
                   const at::TensorOptions& options) {
  if (!at::native::resize_output(result, sizes)) return;
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  if (!strides.empty()) {
    impl->set_sizes_and_strides(sizes, strides);
  } else if (options.memory_format_opt().has_value()) {
    impl->empty_tensor_restride(*options.memory_format_opt());
  }
}

const Tensor* number(const Tensor& value, c10::ScalarType type) {
  if (!value.is_cpu() || value.dim() != 0 || value.layout() != c10::kStrided) return nullptr;
  const auto own = value.scalar_type();
  if (own == type) return &value;
  if (!value.unsafeGetTensorImpl()->is_wrapped_number() || !holds(type, own)) return nullptr;
  const void* memory = value.const_data_ptr();
  switch (own) {
    case at::kDouble: return put(*static_cast<const double*>(memory), type);
    case at::kLong: return put(*static_cast<const int64_t*>(memory), type);
    case at::kBool: return put(*static_cast<const bool*>(memory), type);
    default: return nullptr;
  }
}

const Tensor* number(const Scalar& value, c10::ScalarType type) {
  if (value.isSymbolic() || !holds(type, value.type())) return nullptr;
  switch (value.type()) {
    case at::kDouble: return put(value.toDouble(), type);
    case at::kLong: return put(value.toLong(), type);
    case at::kBool: return put(value.toBool(), type);
    default: return nullptr;
  }
}

}  // namespace ruda_torch::stub
