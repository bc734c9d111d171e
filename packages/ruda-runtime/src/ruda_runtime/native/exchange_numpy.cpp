#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include <ruda/python.hpp>

#include "capture.hpp"
#include "cuda/target.hpp"
#include "exchange.hpp"
#include "streams.hpp"

namespace ruda::native {

namespace py = pybind11;

namespace {

const char* numpy_name(int32_t dtype) {
  return dtype == RUDA_BOOL ? "bool" : dtype_name(dtype);
}

// Memory kept by a Python object, which is let go under the interpreter lock whichever thread ends it.
std::shared_ptr<storage> storage_of(void* data, size_t bytes, py::object owner) {
  PyObject* kept = owner.release().ptr();
  return storage::foreign(data, bytes, [kept] {
    if (Py_IsInitialized() == 0) return;  // the interpreter has gone, and the object with it
    const py::gil_scoped_acquire locked;
    Py_DECREF(kept);
  });
}

// The elements in a NumPy array of their own.
py::object downloaded(const tensor& source) {
  std::vector<py::ssize_t> shape(source.sizes().begin(), source.sizes().end());
  py::array result(py::reinterpret_borrow<py::dtype>(numpy_dtype(source.dtype())), std::move(shape));
  if (source.count() == 0) return result;
  order_for(source);
  if (is_contiguous(source.view())) {
    download(result.mutable_data(), source);
  } else {
    download(result.mutable_data(), *source.copy());
  }
  return result;
}

std::shared_ptr<tensor> uploaded(const py::array& array, const dims& sizes, int32_t dtype,
                                 std::optional<bool> copy) {
  if (copy == false)
    raise(RUDA_ERROR_VALUE, "[from_numpy] array: is in host memory, which a tensor on the GPU cannot "
          "share; pass copy=None");
  auto result = tensor::empty(sizes, dtype);
  if (array.size() == 0) return result;
  const py::array dense = py::module_::import("numpy").attr("ascontiguousarray")(
      array, py::arg("dtype") = numpy_dtype(dtype));
  upload(*result, dense.data());
  return result;
}

}  // namespace

py::object numpy_dtype(int32_t dtype) {
  if (dtype == RUDA_BFLOAT16)
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  return py::dtype(std::string(numpy_name(dtype)));
}

int32_t dtype_code(const py::handle& dtype, const char* operation) {
  std::string name;
  if (py::isinstance<py::str>(dtype)) {
    name = dtype.cast<std::string>();
  } else {
    try {
      name = py::dtype::from_args(py::reinterpret_borrow<py::object>(dtype))
                 .attr("name")
                 .cast<std::string>();
    } catch (py::error_already_set&) {
      name = py::repr(dtype).cast<std::string>();
    }
  }
  for (int32_t code = RUDA_FLOAT32; code <= RUDA_BOOL; ++code)
    if (name == dtype_name(code)) return code;
  raise(RUDA_ERROR_TYPE,
        "[%s] dtype: got %s, wanted float32, float16, bfloat16, float64, int8, int16, int32, int64, "
        "uint8, uint32 or bool",
        operation, name.c_str());
}

void check_not_captured(const char* operation, const tensor* self) {
  status_error failed;
  if (refuse_captured(current_stream(), operation, &failed.error) != RUDA_OK ||
      (self != nullptr && refuse_captured(self->stream(), operation, &failed.error) != RUDA_OK))
    throw failed;
}

void wait_for(const tensor& self) {
  if (asynchronous() == 0) return;
  try {
    const py::gil_scoped_release unlocked;
    self.wait();
  } catch (const status_error& caught) {
    python::throw_error(caught.error);
  }
}

py::object to_numpy(const py::object& self) {
  const auto& source = *self.cast<std::shared_ptr<tensor>>();
  check_not_captured("numpy", &source);
  if (cuda::chosen()) return downloaded(source);
  wait_for(source);
  const int64_t item = item_size(source.dtype());
  std::vector<py::ssize_t> strides;
  for (const int64_t stride : source.strides()) strides.push_back(stride * item);
  std::vector<py::ssize_t> shape(source.sizes().begin(), source.sizes().end());
  const auto dtype = py::reinterpret_borrow<py::dtype>(numpy_dtype(source.dtype()));
  // Without memory (no elements) NumPy makes its own.
  if (source.view().data == nullptr) return py::array(dtype, std::move(shape));
  return py::array(dtype, std::move(shape), std::move(strides), source.view().data, self);
}

std::shared_ptr<tensor> from_numpy(const py::object& object, std::optional<bool> copy) {
  if (!py::isinstance<py::array>(object))
    raise(RUDA_ERROR_TYPE, "[from_numpy] array: got %s, wanted a numpy.ndarray",
          Py_TYPE(object.ptr())->tp_name);
  check_not_captured("from_numpy");
  auto array = py::reinterpret_borrow<py::array>(object);
  const int32_t dtype = dtype_code(array.dtype(), "from_numpy");
  const int64_t item = item_size(dtype);
  if (array.ndim() > max_rank)
    raise(RUDA_ERROR_VALUE, "[from_numpy] array: got rank %lld, wanted at most %d",
          static_cast<long long>(array.ndim()), max_rank);

  const char* obstacle = nullptr;
  dims sizes, strides;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) {
    const int64_t step = array.strides(i);
    // NumPy leaves the strides of dimensions without a second element to chance.
    const bool counts = array.shape(i) > 1 && array.size() > 0;
    if (counts && step < 0) obstacle = "its strides are negative";
    if (counts && step % item != 0) obstacle = "its strides are not multiples of the element size";
    sizes.push_back(array.shape(i));
    strides.push_back(counts ? step / item : 1);
  }
  if (reinterpret_cast<uintptr_t>(array.data()) % static_cast<uintptr_t>(item) != 0)
    obstacle = "its elements are not aligned to their size";
  if (!array.dtype().attr("isnative").cast<bool>()) obstacle = "its byte order is not the machine's";
  if (!array.writeable()) obstacle = "it is read-only";

  if (cuda::chosen()) return uploaded(array, sizes, dtype, copy);
  if (obstacle != nullptr && copy == false)
    raise(RUDA_ERROR_VALUE, "[from_numpy] array: cannot be shared without a copy, %s; pass copy=None",
          obstacle);
  if (obstacle != nullptr || copy == true) {
    // NumPy reads any layout and byte order; the copy it would make of its own is ours.
    auto result = tensor::empty(sizes, dtype);
    const py::object target = to_numpy(py::cast(result));
    if (array.size() > 0) py::module_::import("numpy").attr("copyto")(target, array);
    return result;
  }
  void* data = array.size() == 0 ? nullptr : const_cast<void*>(array.data());
  if (array.size() == 0) strides = contiguous_strides(sizes);
  const size_t bytes = extent_bytes(sizes, strides, item);
  return std::make_shared<tensor>(storage_of(data, bytes, std::move(array)), 0, std::move(sizes),
                                  std::move(strides), dtype);
}

}  // namespace ruda::native
