// The cuda target as Python functions: choosing it, the device, memory and handles.

#include <pybind11/stl.h>

#include <ruda/python.hpp>

#include "bindings.hpp"
#include "cuda/memory.hpp"
#include "cuda/modules.hpp"
#include "cuda/pinned.hpp"
#include "cuda/streams.hpp"
#include "cuda/target.hpp"

namespace ruda::native {
namespace {

namespace py = pybind11;

py::dict device_dict() {
  const cuda::device_info& info = cuda::device();
  py::dict result;
  result["name"] = info.name;
  result["compute_capability"] = py::make_tuple(info.major, info.minor);
  result["multiprocessors"] = info.multiprocessors;
  result["max_threads"] = info.max_threads_per_block;
  result["shared_memory_per_block"] = info.shared_memory_per_block;
  result["warp_size"] = info.warp_size;
  result["cooperative_launch"] = info.cooperative_launch;
  result["memory_total"] = info.memory_total;
  result["is_double"] = info.is_double;
  result["driver_version"] = cuda::api().version;
  return result;
}

}  // namespace

void bind_cuda(py::module_& module) {
  module.def("cuda_probe", [] {
    bool is_double = false;
    const std::string missing = cuda::probe(&is_double);
    return py::make_tuple(missing, is_double);
  });
  module.def("cuda_start", &cuda::start, py::call_guard<py::gil_scoped_release>());
  module.def("cuda_chosen", &cuda::chosen);
  module.def("cuda_device", &device_dict);
  module.def("cuda_memory_free", [] {
    ruda_error error{};
    python::check(cuda::enter("memory_free", &error), error);
    return cuda::memory_free();
  });
  module.def("driver_stream", [](int32_t id) {
    ruda_error error{};
    const cuda::CUstream handle = cuda::driver_stream(id, "Stream", &error);
    python::check(handle == nullptr ? error.code : RUDA_OK, error);
    return reinterpret_cast<uintptr_t>(handle);
  });
  module.def("pinned_bytes", &cuda::pinned_bytes);
  module.def("loaded_modules", &cuda::loaded_modules);
}

}  // namespace ruda::native
