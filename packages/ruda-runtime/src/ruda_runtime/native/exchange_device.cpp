// Copies between tensors and NumPy arrays, page-locked ones included.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

#include <ruda/python.hpp>

#include "cuda/copies.hpp"
#include "cuda/pinned.hpp"
#include "cuda/target.hpp"
#include "exchange.hpp"
#include "streams.hpp"

namespace ruda::native {

namespace py = pybind11;

namespace {

template <class Call>
void unlocked(Call&& call) {
  status_error failed;
  failed.error.code = RUDA_OK;
  int32_t status;
  {
    const py::gil_scoped_release released;
    status = call(&failed.error);
  }
  if (status != RUDA_OK) throw failed;
}

void order_current_stream(const tensor& self) { unlocked([&](ruda_error* error) -> int32_t {
  try {
    self.order();
    return RUDA_OK;
  } catch (const status_error& caught) {
    *error = caught.error;
    return caught.error.code;
  }
}); }

void check_target(const tensor& self, const char* operation) {
  if (!is_contiguous(self.view()))
    raise(RUDA_ERROR_VALUE, "[%s] the tensor has strides %s for shape %s, wanted a contiguous one; "
          "call contiguous()", operation, strides_text(self.view()).c_str(),
          shape_text(self.view()).c_str());
}

py::array matching_array(const tensor& self, const py::object& object, const char* operation) {
  if (!py::isinstance<py::array>(object))
    raise(RUDA_ERROR_TYPE, "[%s] array: got %s, wanted a numpy.ndarray", operation,
          Py_TYPE(object.ptr())->tp_name);
  auto array = py::reinterpret_borrow<py::array>(object);
  const dims shape(array.shape(), array.shape() + array.ndim());
  if (dtype_code(array.dtype(), operation) != self.dtype() || shape != self.sizes())
    raise(RUDA_ERROR_VALUE, "[%s] array: got %s%s, wanted %s", operation,
          py::str(array.dtype()).cast<std::string>().c_str(),
          list_text(shape.data(), static_cast<int32_t>(shape.size())).c_str(),
          view_text(self.view()).c_str());
  if ((array.flags() & py::array::c_style) == 0)
    raise(RUDA_ERROR_VALUE, "[%s] array: wanted a row-major array", operation);
  check_target(self, operation);
  return array;
}

}  // namespace

void order_for(const tensor& self) {
  if (asynchronous() != 0) order_current_stream(self);
}

void upload(const tensor& to, const void* from) {
  unlocked([&](ruda_error* error) {
    return cuda::upload(to.view().data, from, static_cast<size_t>(byte_count(to.view())),
                        current_stream(), error);
  });
}

void download(void* to, const tensor& from) {
  unlocked([&](ruda_error* error) {
    return cuda::download(to, from.view().data, static_cast<size_t>(byte_count(from.view())),
                          current_stream(), error);
  });
}

void copy_from_tensor(const tensor& self, const tensor& source) {
  if (source.dtype() != self.dtype() || source.sizes() != self.sizes())
    raise(RUDA_ERROR_VALUE, "[copy_from] source: got %s, wanted %s", view_text(source.view()).c_str(),
          view_text(self.view()).c_str());
  check_target(self, "copy_from");
  for (const tensor* each : {&self, &source}) order_for(*each);
  self.assign(source);
}

void copy_from_numpy(const tensor& self, const py::object& object) {
  check_not_captured("copy_from", &self);
  const py::array array = matching_array(self, object, "copy_from");
  order_for(self);
  if (array.size() == 0) return;
  if (cuda::chosen()) return upload(self, array.data());
  std::memcpy(self.view().data, array.data(), static_cast<size_t>(byte_count(self.view())));
}

void copy_to_numpy(const tensor& self, const py::object& object) {
  check_not_captured("copy_to", &self);
  py::array array = matching_array(self, object, "copy_to");
  if (!array.writeable()) raise(RUDA_ERROR_VALUE, "[copy_to] array: is read-only");
  order_for(self);
  if (array.size() == 0) return;
  if (cuda::chosen()) return download(array.mutable_data(), self);
  std::memcpy(array.mutable_data(), self.view().data, static_cast<size_t>(byte_count(self.view())));
}

py::object pinned_array(const dims& shape, int32_t dtype) {
  std::vector<py::ssize_t> sizes(shape.begin(), shape.end());
  int64_t bytes = item_size(dtype);
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      raise(RUDA_ERROR_VALUE, "[pinned_empty] shape: got %s, wanted sizes of at least 0 whose bytes fit "
            "63 bits", list_text(shape.data(), static_cast<int32_t>(shape.size())).c_str());
  const auto type = py::reinterpret_borrow<py::dtype>(numpy_dtype(dtype));
  if (!cuda::chosen() || bytes == 0) return py::array(type, std::move(sizes));
  void* memory = nullptr;
  unlocked([&](ruda_error* error) -> int32_t {
    memory = cuda::allocate_pinned(static_cast<size_t>(bytes), error);
    return memory == nullptr ? error->code : RUDA_OK;
  });
  const py::capsule owner(memory, [](void* pointer) { cuda::release_pinned(pointer); });
  return py::array(type, std::move(sizes), std::vector<py::ssize_t>{}, memory, owner);
}

}  // namespace ruda::native
