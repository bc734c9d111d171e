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

// tensor::wait() without the interpreter lock; raises Python's exception.
void wait_for(const tensor& self);

pybind11::object to_numpy(const pybind11::object& self);
std::shared_ptr<tensor> from_numpy(const pybind11::object& array, std::optional<bool> copy);

pybind11::capsule to_dlpack(const std::shared_ptr<tensor>& self, const pybind11::object& stream,
                            const pybind11::object& max_version, const pybind11::object& dl_device,
                            const pybind11::object& copy);
std::shared_ptr<tensor> from_dlpack(const pybind11::object& source, const pybind11::object& device,
                                    std::optional<bool> copy);

}  // namespace ruda::native
