// The class ruda_runtime.Tensor.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <limits>

#include <ruda/python.hpp>

#include "bindings.hpp"
#include "cuda/target.hpp"
#include "dlpack.hpp"
#include "exchange.hpp"
#include "tensor.hpp"

namespace ruda::native {
namespace {

namespace py = pybind11;
constexpr int64_t whole = std::numeric_limits<int64_t>::max();
using tensor_ptr = std::shared_ptr<tensor>;

// Turns the C++ exception of a tensor function into the Python one.
template <class Body>
auto translated(Body&& body) {
  try {
    return body();
  } catch (const status_error& caught) {
    python::throw_error(caught.error);
  }
}

// The first tensor settles the target, so that RUDA_TARGET=cuda never gets host memory in silence.
void settle_target() {
  static bool settled = false;  // under the interpreter lock
  if (settled) return;
  py::module_::import("ruda_runtime.devices").attr("_target")();
  settled = true;
}

// view(2, 3) and view((2, 3)) alike.
dims integers(const py::args& args) {
  if (args.size() == 1 && !PyIndex_Check(args[0].ptr())) return args[0].cast<dims>();
  return args.cast<dims>();
}

py::tuple as_tuple(const dims& values) { return py::tuple(py::cast(values)); }

py::object device_object() { return py::module_::import("ruda_runtime.devices").attr("device_of")(); }

tensor_ptr copy_of(const tensor& self) {
  order_for(self);
  return self.copy();
}

std::string repr(const tensor& self) {
  check_not_captured("repr", &self);
  const py::object array = to_numpy(py::cast(copy_of(self)));
  const auto values = py::module_::import("numpy").attr("array2string")(
      array, py::arg("separator") = ", ", py::arg("prefix") = "Tensor(");
  return "Tensor(" + values.cast<std::string>() + ", shape=" + shape_text(self.view()) +
         ", dtype=" + dtype_name(self.dtype()) + ", device='" +
         py::str(device_object()).cast<std::string>() + "')";
}

void bind_layout(py::class_<tensor, tensor_ptr>& type) {
  type.def_property_readonly(
          "shape", [](const tensor& self) { return as_tuple(self.sizes()); }, "Sizes.")
      .def_property_readonly(
          "strides", [](const tensor& self) { return as_tuple(self.strides()); },
          "Elements to the next index, one number a dimension.")
      .def_property_readonly("offset", &tensor::offset,
                             "Elements from the start of the storage to the first element.")
      .def_property_readonly(
          "ndim", [](const tensor& self) { return self.view().ndim; }, "Number of dimensions.")
      .def_property_readonly("size", &tensor::count, "Number of elements.")
      .def_property_readonly(
          "itemsize", [](const tensor& self) { return item_size(self.dtype()); },
          "Bytes of one element.")
      .def_property_readonly(
          "nbytes", [](const tensor& self) { return byte_count(self.view()); },
          "Bytes of all elements.")
      .def_property_readonly(
          "dtype", [](const tensor& self) { return numpy_dtype(self.dtype()); },
          "The NumPy dtype (ml_dtypes.bfloat16 for bfloat16).")
      .def_property_readonly(
          "dtype_name", [](const tensor& self) { return dtype_name(self.dtype()); },
          "The dtype as text: 'float32', 'bfloat16', ...")
      .def_property_readonly("device", [](const tensor&) { return device_object(); },
                             "The Device whose memory holds the elements.")
      .def_property_readonly(
          "data_ptr",
          [](const tensor& self) { return reinterpret_cast<uintptr_t>(self.view().data); },
          "Address of the first element.")
      .def("is_contiguous", [](const tensor& self) { return is_contiguous(self.view()); },
           "Whether the elements lie in row-major order without gaps.");
}

void bind_views(py::class_<tensor, tensor_ptr>& type) {
  type.def(
          "view",
          [](const tensor& self, const py::args& shape) {
            return translated([&] { return self.reshape(integers(shape), "view"); });
          },
          "The same elements under another shape, without a copy; one size may be -1.\n\n"
          "Raises RudaValueError when the number of elements differs or when only a copy could\n"
          "have that shape.")
      .def(
          "reshape",
          [](const tensor& self, const py::args& shape) {
            return translated([&] { return self.reshape(integers(shape), "reshape"); });
          },
          "The same as view(): it never copies. Call contiguous() first where a copy is meant.")
      .def(
          "permute",
          [](const tensor& self, const py::args& order) {
            return translated([&] { return self.permute(integers(order)); });
          },
          "The dimensions in another order, without a copy; each dimension is named once.")
      .def(
          "slice",
          [](const tensor& self, int64_t dim, std::optional<int64_t> start,
             std::optional<int64_t> stop, int64_t step) {
            return translated(
                [&] { return self.slice(dim, start.value_or(0), stop.value_or(whole), step); });
          },
          py::arg("dim"), py::arg("start") = py::none(), py::arg("stop") = py::none(),
          py::arg("step") = 1,
          "Elements start, start + step, ... below stop of dimension dim, without a copy. Bounds\n"
          "follow Python's rules for negative and too large numbers; step is at least 1.")
      .def(
          "contiguous",
          [](const tensor_ptr& self) {
            return translated([&] { return is_contiguous(self->view()) ? self : copy_of(*self); });
          },
          "This tensor if it is contiguous, else a row-major copy.")
      .def(
          "copy", [](const tensor& self) { return translated([&] { return copy_of(self); }); },
          "A fresh row-major tensor with the same elements.")
      .def(
          "same_execution_queue",
          [](const tensor& self, const tensor& other) {
            return self.view().target == other.view().target &&
                   self.view().device == other.view().device && self.stream() == other.stream();
          },
          py::arg("other"), "Whether both were made on the same stream of the same device.");
}

void bind_exchange(py::class_<tensor, tensor_ptr>& type) {
  type.def_static(
          "from_numpy",
          [](const py::object& array, std::optional<bool> copy) {
            settle_target();
            return translated([&] { return from_numpy(array, copy); });
          },
          py::arg("array"), py::kw_only(), py::arg("copy") = py::none(),
          "A tensor over the memory of a NumPy array, on a GPU a copy (copy=False raises).\n\n"
          "copy=None copies only what cannot be shared: elements that are not aligned to their\n"
          "size, foreign byte order, negative strides, read-only arrays. copy=False raises\n"
          "RudaValueError instead; copy=True always copies. RudaTypeError for other dtypes.")
      .def_static(
          "from_dlpack",
          [](const py::object& source, const py::object& device, std::optional<bool> copy) {
            settle_target();
            return translated([&] { return from_dlpack(source, device, copy); });
          },
          py::arg("source"), py::kw_only(), py::arg("device") = py::none(),
          py::arg("copy") = py::none(),
          "A tensor over the memory of any object with __dlpack__ in host memory.\n\n"
          "Shares the memory unless copy=True; what cannot be shared (read-only or misaligned\n"
          "memory, negative strides) is copied, or refused with RudaValueError by copy=False.")
      .def(
          "numpy", [](const py::object& self) { return translated([&] { return to_numpy(self); }); },
          "A writable NumPy array over the same memory, on a GPU a copy of the elements; waits for work\n"
          "on the tensor. bfloat16 has the dtype ml_dtypes.bfloat16.")
      .def(
          "__array__",
          [](const py::object& self, const py::object& dtype, const py::object& copy) {
            const bool never = !copy.is_none() && !copy.cast<bool>();
            if (never && cuda::chosen())
              throw py::value_error("[Tensor] __array__: the elements are on the GPU, NumPy needs a copy");
            const py::object array = translated([&] { return to_numpy(self); });
            const bool converts =
                !dtype.is_none() &&
                array.attr("dtype").attr("__ne__")(py::dtype::from_args(dtype)).cast<bool>();
            if (converts && never)
              throw py::value_error("[Tensor] __array__: a copy is needed for the dtype asked for");
            if (converts) return py::object(array.attr("astype")(dtype));
            if (!copy.is_none() && copy.cast<bool>()) return py::object(array.attr("copy")());
            return array;
          },
          py::arg("dtype") = py::none(), py::arg("copy") = py::none())
      .def(
          "__dlpack__",
          [](const tensor_ptr& self, const py::object& stream, const py::object& max_version,
             const py::object& dl_device, const py::object& copy) {
            return translated(
                [&] { return to_dlpack(self, stream, max_version, dl_device, copy); });
          },
          py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none(),
           "A DLPack capsule over the same memory (a fresh copy with copy=True).")
      .def("__dlpack_device__", [](const tensor&) {
        return py::make_tuple(static_cast<int>(cuda::chosen() ? dlpack::cuda : dlpack::cpu), 0);
      }, "(1, 0): host memory; (2, 0): the GPU.")
      .def(
          "copy_from",
          [](const tensor& self, const py::object& array) {
            translated([&] {
              if (py::isinstance<tensor>(array)) return copy_from_tensor(self, array.cast<tensor&>());
              copy_from_numpy(self, array);
            });
          },
          py::arg("array"),
          "Writes the elements of a NumPy array or a Tensor of the same shape and dtype into this\n"
          "contiguous tensor. An array of pinned_empty() is copied asynchronously on a GPU with\n"
          "RUDA_ASYNC=1. A Tensor may have any strides; its memory and this tensor's must not overlap,\n"
          "unless both are contiguous.")
      .def(
          "copy_to",
          [](const tensor& self, const py::object& array) {
            translated([&] { copy_to_numpy(self, array); });
          },
          py::arg("array"),
          "Writes the elements of this contiguous tensor into a row-major NumPy array of the same shape\n"
          "and dtype. Into an array of pinned_empty() the copy is asynchronous on a GPU with\n"
          "RUDA_ASYNC=1: wait for the current stream before reading it.")
      .def("_view_address", [](const tensor& self) {
        return reinterpret_cast<uintptr_t>(&self.view());
      });
}

}  // namespace

void bind_tensor(py::module_& module) {
  py::class_<tensor, tensor_ptr> type(
      module, "Tensor",
      "A strided array on a RUDA device: memory, shape, strides (in elements), offset and dtype.\n\n"
      "dtypes: float32, float16, bfloat16, float64, int8, int16, int32, int64, uint8, uint32, bool.\n"
      "Made by empty(), from_numpy() and from_dlpack(); the layout never changes afterwards.");
  type.attr("__module__") = "ruda_runtime";
  bind_layout(type);
  bind_views(type);
  bind_exchange(type);
  type.def("__repr__", [](const tensor& self) { return translated([&] { return repr(self); }); });
  type.def("__len__", [](const tensor& self) {
    if (self.view().ndim == 0) throw py::type_error("[Tensor] len() of a tensor of rank 0");
    return self.sizes()[0];
  });
  // Equality is identity; NumPy compares elements.

  module.def("pinned_array", [](const py::object& shape, const py::object& dtype) {
    settle_target();
    return translated([&] {
      dims sizes = PyIndex_Check(shape.ptr()) ? dims{shape.cast<int64_t>()} : shape.cast<dims>();
      return pinned_array(sizes, dtype_code(dtype, "pinned_empty"));
    });
  });
  module.def(
      "empty",
      [](const py::object& shape, const py::object& dtype) {
        return translated([&] {
          dims sizes = PyIndex_Check(shape.ptr()) ? dims{shape.cast<int64_t>()} : shape.cast<dims>();
          return tensor::empty(std::move(sizes), dtype_code(dtype, "empty"));
        });
      },
      py::arg("shape"), py::arg("dtype"));
}

}  // namespace ruda::native
