// The way down: ruda-runtime's C interface, views of tensors, and the Python types of errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <ruda/abi.h>

#include <optional>

namespace ruda_torch {

constexpr c10::DeviceType kRuda = c10::DeviceType::PrivateUse1;

// ruda-runtime's function table. Set once, when the package is imported; calling it earlier throws.
const ruda_api* api();

// Checks the version and the size of the table and keeps it.
void set_api(const ruda_api* table);

// Turns a status into the exception whose Python type it stands for: ValueError, TypeError,
// NotImplementedError, torch.OutOfMemoryError, RuntimeError. Does nothing for RUDA_OK.
void check(int32_t status, const ruda_error& error);

// The element type's number in the C interface, or nothing when it has none (complex, float8, ...).
std::optional<int32_t> ruda_dtype_of(c10::ScalarType type);

// A view of a strided tensor, on ruda or on the CPU. It
// borrows the tensor's sizes and strides: keep the tensor alive and unchanged. `operation` is the
// name in the error text. A conjugate or negative view is refused, since a view cannot say it.
ruda_view view_of(const at::Tensor& tensor, const char* operation);

}  // namespace ruda_torch
