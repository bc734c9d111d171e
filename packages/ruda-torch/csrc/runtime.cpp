#include "runtime.h"

#include "cuda/target.h"

#include <c10/util/Exception.h>
#include <ruda/entry.hpp>

namespace ruda_torch {

namespace {

const ruda_api* g_api = nullptr;

}  // namespace

const ruda_api* api() {
  TORCH_CHECK(g_api != nullptr, "[ruda_torch] the native module was used before its package: got "
              "no runtime interface, wanted `import ruda_torch` first");
  return g_api;
}

void set_api(const ruda_api* table) {
  ruda_error error{};
  check(ruda::attach(table, "ruda_torch", &error), error);  // for code written with ruda/entry.hpp
  g_api = table;
}

void check(int32_t status, const ruda_error& error) {
  if (status == RUDA_OK) return;
  const char* message = error.message;
  switch (status) {
    case RUDA_ERROR_VALUE:
      TORCH_CHECK_VALUE(false, message);
    case RUDA_ERROR_TYPE:
      TORCH_CHECK_TYPE(false, message);
    case RUDA_ERROR_UNSUPPORTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, message);
    case RUDA_ERROR_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    default:
      TORCH_CHECK(false, message);
  }
}

std::optional<int32_t> ruda_dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float: return RUDA_FLOAT32;
    case c10::ScalarType::Half: return RUDA_FLOAT16;
    case c10::ScalarType::BFloat16: return RUDA_BFLOAT16;
    case c10::ScalarType::Double: return RUDA_FLOAT64;
    case c10::ScalarType::Char: return RUDA_INT8;
    case c10::ScalarType::Short: return RUDA_INT16;
    case c10::ScalarType::Int: return RUDA_INT32;
    case c10::ScalarType::Long: return RUDA_INT64;
    case c10::ScalarType::Byte: return RUDA_UINT8;
    case c10::ScalarType::UInt32: return RUDA_UINT32;
    case c10::ScalarType::Bool: return RUDA_BOOL;
    default: return std::nullopt;
  }
}

ruda_view view_of(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK_TYPE(tensor.layout() == c10::kStrided, "[", operation, "] layout: got ",
                   tensor.layout(), ", wanted a strided tensor");
  TORCH_CHECK_TYPE(tensor.device().type() == kRuda || tensor.device().is_cpu(), "[", operation,
                   "] device: got ", tensor.device(), ", wanted ruda or cpu");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "[", operation, "] got a lazy "
                    "conjugate or negative view; call resolve_conj() and resolve_neg() first");
  const auto dtype = ruda_dtype_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype.has_value(), "[", operation, "] dtype: got ", tensor.scalar_type(),
                   ", wanted a real dtype that RUDA's kernels know");
  ruda_view view;
  view.data = tensor.numel() == 0 ? nullptr : const_cast<void*>(tensor.const_data_ptr());
  view.sizes = tensor.sizes().data();
  view.strides = tensor.strides().data();
  view.ndim = static_cast<int32_t>(tensor.dim());
  view.dtype = *dtype;
  view.target = on_cuda() && tensor.is_privateuseone() ? RUDA_CUDA : RUDA_HOST;
  view.device = 0;
  return view;
}

}  // namespace ruda_torch
