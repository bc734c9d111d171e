// Tensors from and to NumPy and DLPack.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "tensor.hpp"

namespace ruda::native {

// The NumPy dtype of an enum ruda_dtype.
pybind11::object numpy_dtype(int32_t dtype);
// The enum ruda_dtype of anything NumPy takes as a dtype, and of 'bfloat16'. Throws status_error.
int32_t dtype_code(const pybind11::handle& dtype, const char* operation);

// Throws status_error when the current stream, or the tensor's own, is captured: elements can neither be
// read nor come from outside then.
void check_not_captured(const char* operation, const tensor* self = nullptr);

// tensor::wait() and tensor::order() without the interpreter lock; they raise Python's exception.
void wait_for(const tensor& self);
void order_for(const tensor& self);

// Copies between a contiguous tensor of a GPU and row-major host memory, on the current stream and
// without the interpreter lock.
void upload(const tensor& to, const void* from);
void download(void* to, const tensor& from);

// Copies on the device, between tensors of one shape and dtype.
void copy_from_tensor(const tensor& self, const tensor& source);

// Elements between a tensor and a NumPy array of its shape and dtype, in either direction; page-locked
// arrays are copied asynchronously.
void copy_from_numpy(const tensor& self, const pybind11::object& array);
void copy_to_numpy(const tensor& self, const pybind11::object& array);

// A NumPy array in page-locked memory (ordinary memory on the host target).
pybind11::object pinned_array(const dims& shape, int32_t dtype);

pybind11::object to_numpy(const pybind11::object& self);
std::shared_ptr<tensor> from_numpy(const pybind11::object& array, std::optional<bool> copy);

pybind11::capsule to_dlpack(const std::shared_ptr<tensor>& self, const pybind11::object& stream,
                            const pybind11::object& max_version, const pybind11::object& dl_device,
                            const pybind11::object& copy);
std::shared_ptr<tensor> from_dlpack(const pybind11::object& source, const pybind11::object& device,
                                    std::optional<bool> copy);

}  // namespace ruda::native
