#include <pybind11/stl.h>

#include <ruda/entry.hpp>

#include "cuda/copies.hpp"
#include "cuda/streams.hpp"
#include "cuda/target.hpp"
#include "dlpack.hpp"
#include "exchange.hpp"
#include "streams.hpp"

namespace ruda::native {

namespace py = pybind11;

namespace {

dlpack::data_type to_dlpack_type(int32_t dtype) {
  const auto bits = static_cast<uint8_t>(item_size(dtype) * 8);
  switch (dtype) {
    case RUDA_BFLOAT16: return {dlpack::code_bfloat, bits, 1};
    case RUDA_BOOL: return {dlpack::code_bool, bits, 1};
    case RUDA_UINT8:
    case RUDA_UINT32: return {dlpack::code_uint, bits, 1};
    case RUDA_INT8:
    case RUDA_INT16:
    case RUDA_INT32:
    case RUDA_INT64: return {dlpack::code_int, bits, 1};
    default: return {dlpack::code_float, bits, 1};
  }
}

int32_t from_dlpack_type(dlpack::data_type type) {
  for (int32_t dtype = RUDA_FLOAT32; dtype <= RUDA_BOOL; ++dtype) {
    const dlpack::data_type each = to_dlpack_type(dtype);
    if (each.code == type.code && each.bits == type.bits && type.lanes == 1) return dtype;
  }
  raise(RUDA_ERROR_TYPE,
        "[from_dlpack] dtype: got DLPack type code %d with %d bits and %d lanes, wanted float32, "
        "float16, bfloat16, float64, int8, int16, int32, int64, uint8, uint32 or bool",
        type.code, type.bits, type.lanes);
}

// What an exported capsule keeps alive.
template <class Managed>
struct exported {
  Managed managed{};
  std::shared_ptr<tensor> source;
  dims shape;
  dims strides;
};

template <class Managed>
Managed* fill(const std::shared_ptr<tensor>& source) {
  auto* kept = new exported<Managed>{{}, source, source->sizes(), source->strides()};
  kept->managed.content = {source->view().data,
                           {cuda::chosen() ? dlpack::cuda : dlpack::cpu, 0},
                           source->view().ndim,
                           to_dlpack_type(source->dtype()),
                           kept->shape.data(),
                           kept->strides.data(),
                           0};
  kept->managed.context = kept;
  kept->managed.deleter = [](Managed* self) { delete static_cast<exported<Managed>*>(self->context); };
  return &kept->managed;
}

// A capsule that nobody took over frees what it carries.
template <class Managed>
py::capsule make_capsule(Managed* managed, const char* name) {
  PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* self) {
    const char* current = PyCapsule_GetName(self);
    if (current == nullptr || std::strncmp(current, "used_", 5) == 0) return;
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(self, current));
    if (unused != nullptr) unused->deleter(unused);
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::capsule>(capsule);
}

[[noreturn]] void raise_buffer_error(const std::string& message) {
  PyErr_SetString(PyExc_BufferError, message.c_str());
  throw py::error_already_set();
}

// Calls source.__dlpack__, falling back to the arguments that older producers know.
py::object request_capsule(const py::object& source, std::optional<bool> copy,
                           std::optional<uintptr_t> stream) {
  const py::object method = source.attr("__dlpack__");
  try {
    py::dict arguments;
    arguments["max_version"] = py::make_tuple(1, 0);
    if (copy.has_value()) arguments["copy"] = *copy;
    if (stream.has_value()) arguments["stream"] = *stream;
    return method(**arguments);
  } catch (py::error_already_set& caught) {
    if (!caught.matches(PyExc_TypeError)) throw;
  }
  return stream.has_value() ? method(py::arg("stream") = *stream) : method();
}

void check_place(int type, int index) {
  const bool host = type == dlpack::cpu || type == dlpack::cuda_host;
  if (host || (cuda::chosen() && type == dlpack::cuda && index == 0)) return;
  raise(RUDA_ERROR_TYPE, "[from_dlpack] source: got memory of DLPack device type %d, wanted host "
        "memory (1)%s; move it to the CPU first", type,
        cuda::chosen() ? " or that of GPU 0 (2)" : "");
}

// Strided elements of host memory or of the GPU into a fresh tensor.
void copy_elements(const void* data, bool on_device, const dims& sizes, const dims& strides,
                   int64_t item, const tensor& result) {
  if (!cuda::chosen()) {
    wait_for(result);  // its memory may still be in use by work queued before
    // Memory may be aligned to less than the element; the copy moves bytes.
    copy_to_contiguous(data, sizes, strides, item, result.view().data);
    return;
  }
  if (!on_device) {
    std::vector<char> dense(static_cast<size_t>(byte_count(result.view())));
    copy_to_contiguous(data, sizes, strides, item, dense.data());
    upload(result, dense.data());
    return;
  }
  for (const int64_t stride : strides)
    if (stride < 0)
      raise(RUDA_ERROR_UNSUPPORTED, "[from_dlpack] source: has negative strides on the GPU; make it "
            "contiguous there first");
  status_error failed;
  if (cuda::gather(result.view().data, data, sizes, strides, item, current_stream(),
                   &failed.error) != RUDA_OK)
    throw failed;
}

// What `stream` of __dlpack__ means for a tensor of a GPU: 1 and None the legacy default stream, 2 the
// thread's default stream, -1 no order, else a driver's stream.
void order_consumer(const tensor& self, const py::object& stream) {
  const int64_t number = stream.is_none() ? 1 : stream.cast<int64_t>();
  if (number == -1) return;
  if (number < 1)
    throw py::value_error("[__dlpack__] stream: got " + std::to_string(number) +
                          ", wanted None, -1, 1, 2 or the handle of a stream");
  status_error failed;
  const auto consumer = reinterpret_cast<cuda::CUstream>(static_cast<uintptr_t>(number));
  for (const int32_t each : {self.stream(), current_stream()})
    if (cuda::order_foreign_stream(each, consumer, &failed.error) != RUDA_OK) throw failed;
}

// One managed tensor, taken over from its capsule.
template <class Managed>
std::shared_ptr<tensor> take_over(const py::object& capsule, const char* name, const char* used_name,
                                  bool read_only, bool is_copy, std::optional<bool> copy) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  const dlpack::tensor& content = managed->content;
  check_place(content.place.type, content.place.index);
  const bool on_device = content.place.type == dlpack::cuda;
  const int32_t dtype = from_dlpack_type(content.dtype);
  const int64_t item = item_size(dtype);
  if (content.ndim > max_rank)
    raise(RUDA_ERROR_VALUE, "[from_dlpack] source: got rank %d, wanted at most %d", content.ndim,
          max_rank);
  dims sizes(content.shape, content.shape + content.ndim);
  dims strides = contiguous_strides(sizes);
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const char* obstacle = read_only ? "it is read-only" : nullptr;
  if (on_device != cuda::chosen()) obstacle = "it is in host memory, the tensor is on the GPU";
  if (content.strides != nullptr && count != 0) {
    for (int32_t i = 0; i < content.ndim; ++i) {
      if (sizes[i] < 2) continue;
      strides[i] = content.strides[i];
      if (strides[i] < 0) obstacle = "its strides are negative";
    }
  }
  char* data = count == 0 ? nullptr : static_cast<char*>(content.data) + content.byte_offset;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(item) != 0)
    obstacle = "its elements are not aligned to their size";
  if (obstacle != nullptr && copy == false)
    raise(RUDA_ERROR_VALUE, "[from_dlpack] source: cannot be shared without a copy, %s; pass "
          "copy=None", obstacle);

  if (obstacle != nullptr || (copy == true && !is_copy)) {
    auto result = tensor::empty(sizes, dtype);
    if (count != 0) copy_elements(data, on_device, sizes, strides, item, *result);
    return result;  // the capsule still owns the source and ends it
  }
  PyCapsule_SetName(capsule.ptr(), used_name);
  PyCapsule_SetDestructor(capsule.ptr(), nullptr);
  auto memory = storage::foreign(data, extent_bytes(sizes, strides, item), [managed] {
    if (managed->deleter == nullptr || Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire locked;  // producers written in Python expect the lock
    managed->deleter(managed);
  });
  return std::make_shared<tensor>(std::move(memory), 0, std::move(sizes), std::move(strides), dtype);
}

}  // namespace

py::capsule to_dlpack(const std::shared_ptr<tensor>& self, const py::object& stream,
                      const py::object& max_version, const py::object& dl_device,
                      const py::object& copy) {
  check_not_captured("__dlpack__", self.get());
  const bool on_device = cuda::chosen();
  const bool elsewhere =
      !dl_device.is_none() && dl_device.cast<std::pair<int, int>>() !=
                                  std::pair<int, int>{on_device ? dlpack::cuda : dlpack::cpu, 0};
  if (on_device && elsewhere && dl_device.cast<std::pair<int, int>>() == std::pair{1, 0} &&
      (copy.is_none() || copy.cast<bool>()))
    return to_numpy(py::cast(self)).attr("__dlpack__")(py::arg("max_version") = max_version);
  if (!on_device && !stream.is_none())
    throw py::value_error("[__dlpack__] stream: got " + py::repr(stream).cast<std::string>() +
                          ", wanted None: host memory has no stream");
  if (elsewhere)
    raise_buffer_error("[__dlpack__] dl_device: got " + py::repr(dl_device).cast<std::string>() +
                       (on_device ? ", wanted (2, 0), the GPU, or (1, 0) with a copy"
                                  : ", wanted (1, 0), host memory"));
  if (!on_device) wait_for(*self);
  const bool copied = !copy.is_none() && copy.cast<bool>();
  std::shared_ptr<tensor> source = self;
  if (copied) {
    try {
      if (on_device) order_for(*self);
      source = self->copy();
    } catch (const status_error& caught) {
      raise_buffer_error(caught.error.message);
    }
  }
  if (on_device) order_consumer(*source, stream);
  const bool versioned =
      !max_version.is_none() && max_version.cast<std::pair<uint32_t, uint32_t>>().first >= 1;
  if (!versioned) return make_capsule(fill<dlpack::managed_tensor>(source), dlpack::capsule_name);
  auto* managed = fill<dlpack::managed_tensor_versioned>(source);
  managed->version = {1, 0};
  managed->flags = copied ? dlpack::flag_copied : 0;
  return make_capsule(managed, dlpack::capsule_name_versioned);
}

std::shared_ptr<tensor> from_dlpack(const py::object& source, const py::object& device,
                                    std::optional<bool> copy) {
  if (!py::hasattr(source, "__dlpack__") || !py::hasattr(source, "__dlpack_device__"))
    raise(RUDA_ERROR_TYPE, "[from_dlpack] source: got %s, wanted an object with __dlpack__ and "
          "__dlpack_device__", Py_TYPE(source.ptr())->tp_name);
  check_not_captured("from_dlpack");
  if (!device.is_none()) py::module_::import("ruda_runtime.devices").attr("device_of")(device);
  const auto place = py::tuple(source.attr("__dlpack_device__")());
  const auto type = py::int_(place[0]).cast<int>();
  check_place(type, py::int_(place[1]).cast<int>());

  // A producer on the GPU makes its work precede ours.
  std::optional<uintptr_t> stream;
  if (type == dlpack::cuda) {
    status_error failed;
    const cuda::CUstream handle = cuda::driver_stream(current_stream(), "from_dlpack", &failed.error);
    if (handle == nullptr) throw failed;
    stream = reinterpret_cast<uintptr_t>(handle);
  }
  const py::object capsule = request_capsule(source, copy, stream);
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::capsule_name_versioned) != 0) {
    const auto* managed = static_cast<const dlpack::managed_tensor_versioned*>(
        PyCapsule_GetPointer(capsule.ptr(), dlpack::capsule_name_versioned));
    if (managed->version.major != 1)
      raise(RUDA_ERROR_UNSUPPORTED, "[from_dlpack] source: got DLPack version %u.%u, wanted 1.x",
            managed->version.major, managed->version.minor);
    return take_over<dlpack::managed_tensor_versioned>(
        capsule, dlpack::capsule_name_versioned, dlpack::capsule_name_versioned_used,
        (managed->flags & dlpack::flag_read_only) != 0, (managed->flags & dlpack::flag_copied) != 0,
        copy);
  }
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::capsule_name) != 0)
    return take_over<dlpack::managed_tensor>(capsule, dlpack::capsule_name,
                                             dlpack::capsule_name_used, false, false, copy);
  raise(RUDA_ERROR_TYPE, "[from_dlpack] source: __dlpack__ returned something that is no unused "
        "DLPack capsule");
}

}  // namespace ruda::native
