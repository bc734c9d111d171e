// For the pybind11 modules of the packages above: the runtime's table, Tensor arguments as views,
// launches without the interpreter lock, statuses as Python exceptions.
//
//   PYBIND11_MODULE(_native, module) {
//     ruda::python::attach(module, "ruda_blas");          // sets _native.abi_version, then checks
//     ruda::python::register_kernel("gemm.matmul", "ruda-blas", ruda::gemm_args_layout, gemm_entry);
//     module.def("matmul", [](py::handle a, py::handle b, py::handle bias, py::handle out) {
//       const ruda::gemm_args args{ruda::python::view_of(a, "gemm.matmul", "a"), ...,
//                                  ruda::python::optional_view_of(bias, "gemm.matmul", "bias"), ...};
//       ruda::python::launch("gemm.matmul", ruda::gemm_args_layout, &args);
//     });
//   }
#ifndef RUDA_PYTHON_HPP
#define RUDA_PYTHON_HPP

#include <pybind11/pybind11.h>

#include <ruda/entry.hpp>

namespace ruda::python {

namespace py = pybind11;

// The exception classes of an operation; null means the runtime's own (ruda_runtime.errors).
struct error_classes {
  py::handle value;        // RUDA_ERROR_VALUE, a ValueError
  py::handle type;         // RUDA_ERROR_TYPE, a TypeError
  py::handle unsupported;  // RUDA_ERROR_UNSUPPORTED, a NotImplementedError
};

// Raises the Python exception of a status. Needs the interpreter lock.
[[noreturn]] inline void throw_error(const ruda_error& error, const error_classes& classes = {}) {
  py::handle chosen;
  const char* fallback = "RudaRuntimeError";
  switch (error.code) {
    case RUDA_ERROR_VALUE:
      chosen = classes.value;
      fallback = "RudaValueError";
      break;
    case RUDA_ERROR_TYPE:
      chosen = classes.type;
      fallback = "RudaTypeError";
      break;
    case RUDA_ERROR_UNSUPPORTED:
      chosen = classes.unsupported;
      fallback = "UnsupportedError";
      break;
    case RUDA_ERROR_MEMORY: fallback = "OutOfMemoryError"; break;
    default: break;
  }
  py::object runtime_class;
  if (!chosen) {
    runtime_class = py::module_::import("ruda_runtime.errors").attr(fallback);
    chosen = runtime_class;
  }
  PyErr_SetString(chosen.ptr(), error.message);
  throw py::error_already_set();
}

inline void check(int32_t status, const ruda_error& error, const error_classes& classes = {}) {
  if (status != RUDA_OK) throw_error(error, classes);
}

// First statement of a module: gives it `abi_version` and binds it to the runtime of this process.
inline void attach(py::module_& module, const char* name) {
  module.attr("abi_version") = RUDA_ABI_VERSION;
  const py::object capsule = py::module_::import("ruda_runtime._native").attr("api");
  ruda_error error{};
  if (ruda::attach(py::reinterpret_borrow<py::capsule>(capsule).get_pointer<void>(), name, &error) !=
      RUDA_OK) {
    const py::object mismatch = py::module_::import("ruda_runtime.errors").attr("AbiMismatch");
    PyErr_SetString(mismatch.ptr(), error.message);
    throw py::error_already_set();
  }
}

inline void register_kernel(const char* name, const char* package, const ruda_layout& layout,
                            ruda_kernel_fn run) {
  ruda_error error{};
  check(ruda::register_kernel(name, package, layout, run, &error), error);
}

// The view of a ruda_runtime.Tensor. It lives as long as the Python object.
inline const ruda_view* view_of(py::handle object, const char* operation, const char* name,
                                const error_classes& classes = {}) {
  static PyObject* const method = PyUnicode_InternFromString("_view_address");
  PyObject* address = PyObject_CallMethodNoArgs(object.ptr(), method);
  if (address == nullptr) {
    PyErr_Clear();
    ruda_error error{};
    fail(&error, RUDA_ERROR_TYPE, "[%s] %s: got %s, wanted a ruda_runtime.Tensor", operation, name,
         Py_TYPE(object.ptr())->tp_name);
    throw_error(error, classes);
  }
  const auto* view = static_cast<const ruda_view*>(PyLong_AsVoidPtr(address));
  Py_DECREF(address);
  if (view == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return view;
}

// Null for None.
inline const ruda_view* optional_view_of(py::handle object, const char* operation, const char* name,
                                         const error_classes& classes = {}) {
  return object.is_none() ? nullptr : view_of(object, operation, name, classes);
}

// Finds, checks and launches a kernel on the current stream. Other Python threads run meanwhile.
inline void launch(const char* name, uint64_t layout, const void* args,
                   const error_classes& classes = {}) {
  ruda_error error{};
  int32_t status;
  {
    const py::gil_scoped_release unlocked;
    const ruda_kernel* kernel = nullptr;
    status = find_kernel(name, layout, &kernel, &error);
    if (status == RUDA_OK) status = api()->launch(kernel, args, nullptr, &error);
  }
  check(status, error, classes);
}

}  // namespace ruda::python

#endif  // RUDA_PYTHON_HPP
