// The parts of the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace ruda::native {

void bind_tensor(pybind11::module_& module);
void bind_runtime(pybind11::module_& module);
void bind_cuda(pybind11::module_& module);
void bind_graph(pybind11::module_& module);
void bind_kernel(pybind11::module_& module);

}  // namespace ruda::native
