#include "bindings_arguments.hpp"

#include <pybind11/stl.h>

#include <cstring>

#include <ruda/python.hpp>

#include "tensor.hpp"

namespace ruda::native {
namespace {

namespace py = pybind11;

template <class... Values>
[[noreturn]] void raise_python(int32_t code, const char* format, Values... values) {
  ruda_error error{};
  fail(&error, code, format, values...);
  python::throw_error(error);
}

const char* type_of(PyObject* object) { return Py_TYPE(object)->tp_name; }

[[noreturn]] void raise_type(const ruda_device_kernel& kernel, const cuda::parameter& wanted,
                             PyObject* given, const char* text) {
  raise_python(RUDA_ERROR_TYPE, "[%s] %s: got %s, wanted %s", kernel.name.c_str(),
               wanted.name.c_str(), type_of(given), text);
}

ruda_argument integer_of(const ruda_device_kernel& kernel, const cuda::parameter& wanted,
                         PyObject* given) {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_INTEGER;
  PyObject* number = PyLong_CheckExact(given) ? Py_NewRef(given) : PyNumber_Index(given);
  if (number == nullptr) {
    PyErr_Clear();
    raise_type(kernel, wanted, given, "an integer");
  }
  int overflow = 0;
  result.value.integer = PyLong_AsLongLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  if (overflow != 0)
    raise_python(RUDA_ERROR_VALUE, "[%s] %s: got a number that 64 bits do not hold",
                 kernel.name.c_str(), wanted.name.c_str());
  return result;
}

// A ruda_runtime.launch.View: (address, dtype, shape, strides).
ruda_argument view_argument(const ruda_device_kernel& kernel, const cuda::parameter& wanted,
                            PyObject* given) {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_POINTER;
  result.dtype = -1;
  result.value.pointer = PyLong_AsVoidPtr(PyTuple_GET_ITEM(given, 0));
  const char* name = PyErr_Occurred() == nullptr ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(given, 1)) : nullptr;
  for (int32_t each = RUDA_FLOAT32; name != nullptr && each <= RUDA_BOOL; ++each)
    if (std::strcmp(name, dtype_name(each)) == 0) result.dtype = each;
  if (result.dtype >= 0) return result;
  PyErr_Clear();
  raise_type(kernel, wanted, given, "a View of an address and a dtype");
}

ruda_argument tensor_argument(const ruda_device_kernel& kernel, const cuda::parameter& wanted,
                              PyObject* given) {
  if (given == Py_None) return ruda_argument{};
  if (PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 4)
    return view_argument(kernel, wanted, given);
  py::detail::make_caster<tensor> caster;
  if (!caster.load(given, false)) raise_type(kernel, wanted, given, "a ruda_runtime.Tensor");
  const ruda_view& view = static_cast<tensor&>(caster).view();
  if (view.target != RUDA_CUDA)
    raise_python(RUDA_ERROR_TYPE, "[%s] %s: got a tensor of the host target, wanted one on the GPU",
                 kernel.name.c_str(), wanted.name.c_str());
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_POINTER;
  result.dtype = view.dtype;
  result.value.pointer = view.data;
  return result;
}

ruda_argument constant_argument(const ruda_device_kernel& kernel, const cuda::parameter& wanted,
                                PyObject* given) {
  ruda_argument result{};
  if (given == Py_None) return result;
  if (PyBool_Check(given)) {
    result.kind = RUDA_ARGUMENT_BOOLEAN;
    result.value.integer = given == Py_True ? 1 : 0;
  } else if (PyFloat_Check(given)) {
    result.kind = RUDA_ARGUMENT_REAL;
    result.value.real = PyFloat_AS_DOUBLE(given);
  } else if (PyUnicode_Check(given)) {
    result.kind = RUDA_ARGUMENT_TEXT;
    result.value.text = PyUnicode_AsUTF8(given);
    if (result.value.text == nullptr) throw py::error_already_set();
  } else if (PyIndex_Check(given)) {
    return integer_of(kernel, wanted, given);
  } else {
    raise_type(kernel, wanted, given, "a constant: an int, float, bool, str or None");
  }
  return result;
}

ruda_argument converted(const ruda_device_kernel& kernel, const cuda::parameter& wanted,
                        PyObject* given) {
  ruda_argument result{};
  switch (wanted.type) {
    case cuda::parameter_type::pointer: return tensor_argument(kernel, wanted, given);
    case cuda::parameter_type::constant: return constant_argument(kernel, wanted, given);
    case cuda::parameter_type::integer: return integer_of(kernel, wanted, given);
    case cuda::parameter_type::real:
      result.kind = RUDA_ARGUMENT_REAL;
      result.value.real = PyFloat_AsDouble(given);
      if (result.value.real == -1.0 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        raise_type(kernel, wanted, given, "a real number");
      }
      return result;
    case cuda::parameter_type::boolean: break;
  }
  if (!PyBool_Check(given)) raise_type(kernel, wanted, given, "a bool");
  result.kind = RUDA_ARGUMENT_BOOLEAN;
  result.value.integer = given == Py_True ? 1 : 0;
  return result;
}

// Takes an option out of `named`; whether it was there.
bool read_option(const ruda_device_kernel& kernel, const py::dict& named, const char* name,
                 int32_t* value) {
  PyObject* given = PyDict_GetItemString(named.ptr(), name);
  if (given == nullptr) return false;
  const long number = PyLong_AsLong(given);
  if ((number == -1 && PyErr_Occurred() != nullptr) || number < 0 || number > 1 << 20) {
    PyErr_Clear();
    raise_python(RUDA_ERROR_VALUE, "[%s] %s: got %s, wanted a small whole number",
                 kernel.name.c_str(), name, py::repr(given).cast<std::string>().c_str());
  }
  *value = static_cast<int32_t>(number);
  return true;
}

[[noreturn]] void raise_unknown(const ruda_device_kernel& kernel, const py::tuple& positional,
                                const py::dict& named) {
  std::string names;
  for (const cuda::parameter& each : kernel.parameters)
    names += (names.empty() ? "" : ", ") + each.name;
  if (positional.size() > kernel.parameters.size())
    raise_python(RUDA_ERROR_TYPE, "[%s] got %zu arguments, wanted %zu: %s", kernel.name.c_str(),
                 positional.size(), kernel.parameters.size(), names.c_str());
  std::string given;
  for (const auto& item : named)
    given += (given.empty() ? "" : ", ") + py::str(item.first).cast<std::string>();
  raise_python(RUDA_ERROR_TYPE,
               "[%s] got %zu arguments and by name: %s; wanted each of (%s) once and the options "
               "num_warps and num_stages",
               kernel.name.c_str(), positional.size(), given.c_str(), names.c_str());
}

}  // namespace

kernel_arguments::kernel_arguments(const ruda_device_kernel& kernel, const py::tuple& positional,
                                   const py::dict& named, bool with_options)
    : count(static_cast<int32_t>(kernel.parameters.size())) {
  const auto given = static_cast<size_t>(PyTuple_GET_SIZE(positional.ptr()));
  if (given > kernel.parameters.size()) raise_unknown(kernel, positional, named);
  size_t used = 0;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const cuda::parameter& wanted = kernel.parameters[i];
    PyObject* object = nullptr;
    if (i < given) {
      object = PyTuple_GET_ITEM(positional.ptr(), static_cast<Py_ssize_t>(i));
    } else {
      object = PyDict_GetItemString(named.ptr(), wanted.name.c_str());
      ++used;
    }
    if (object == nullptr)
      raise_python(RUDA_ERROR_TYPE, "[%s] %s: is missing", kernel.name.c_str(),
                   wanted.name.c_str());
    list[i] = converted(kernel, wanted, object);
  }
  const auto size = static_cast<size_t>(PyDict_GET_SIZE(named.ptr()));
  if (with_options && used != size) {
    used += read_option(kernel, named, "num_warps", &options.num_warps);
    used += read_option(kernel, named, "num_stages", &options.num_stages);
  }
  if (used != size) raise_unknown(kernel, positional, named);
}

void read_grid(const ruda_device_kernel& kernel, const py::handle& grid, uint32_t extent[3]) {
  extent[0] = extent[1] = extent[2] = 1;
  const auto wrong = [&] {
    PyErr_Clear();
    raise_python(RUDA_ERROR_VALUE,
                 "[%s] grid: got %s, wanted 1 to 3 whole numbers from 0 to 4294967295",
                 kernel.name.c_str(), py::repr(grid).cast<std::string>().c_str());
  };
  const auto read = [&](PyObject* number, uint32_t* value) {
    const long long whole = PyIndex_Check(number) ? PyLong_AsLongLong(number) : -1;
    if (whole < 0 || whole > UINT32_MAX) wrong();
    *value = static_cast<uint32_t>(whole);
  };
  if (PyTuple_Check(grid.ptr())) {
    const Py_ssize_t size = PyTuple_GET_SIZE(grid.ptr());
    if (size < 1 || size > 3) wrong();
    for (Py_ssize_t i = 0; i < size; ++i) read(PyTuple_GET_ITEM(grid.ptr(), i), &extent[i]);
  } else {
    read(grid.ptr(), &extent[0]);
  }
}

cuda::parameter read_parameter(const py::handle& fields) {
  const auto tuple = py::reinterpret_borrow<py::tuple>(fields);
  cuda::parameter result;
  result.name = tuple[0].cast<std::string>();
  const auto type = tuple[1].cast<std::string>();
  result.type = type == "pointer"   ? cuda::parameter_type::pointer
                : type == "integer" ? cuda::parameter_type::integer
                : type == "real"    ? cuda::parameter_type::real
                : type == "boolean" ? cuda::parameter_type::boolean
                                    : cuda::parameter_type::constant;
  result.bits = tuple[2].cast<int32_t>();
  result.is_signed = tuple[3].cast<bool>();
  result.dtypes = tuple[4].cast<uint32_t>();
  result.optional = tuple[5].cast<bool>();
  result.divisible = tuple[6].cast<bool>();
  result.one = tuple[7].cast<bool>();
  return result;
}

}  // namespace ruda::native
