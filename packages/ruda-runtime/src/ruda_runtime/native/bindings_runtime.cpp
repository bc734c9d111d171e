// Memory, threads, kernels and streams as Python functions; the public modules wrap them.

#include <pybind11/stl.h>

#include <ruda/python.hpp>

#include "allocator.hpp"
#include "bindings.hpp"
#include "environment.hpp"
#include "kernels.hpp"
#include "streams.hpp"
#include "system.hpp"
#include "thread_pool.hpp"

namespace ruda::native {
namespace {

namespace py = pybind11;

py::dict memory_stats_dict() {
  ruda_memory_stats stats{};
  memory_stats(&stats);
  py::dict result;
  result["allocated"] = stats.allocated;
  result["reserved"] = stats.reserved;
  result["peak_allocated"] = stats.peak_allocated;
  result["peak_reserved"] = stats.peak_reserved;
  result["count"] = stats.count;
  result["allocations"] = stats.allocations;
  result["system_allocations"] = stats.system_allocations;
  result["out_of_memory"] = stats.out_of_memory;
  return result;
}

void bind_streams(py::module_& module) {
  module.def("open_stream", [] {
    ruda_error error{};
    int32_t id = 0;
    python::check(open_stream(&id, &error), error);
    return id;
  });
  module.def("close_stream", [](int32_t id) {
    ruda_error error{};
    python::check(close_stream(id, &error), error);
  });
  module.def("set_current_stream", [](int32_t id) {
    ruda_error error{};
    python::check(set_current_stream(id, &error), error);
  });
  module.def("current_stream", &current_stream);
  module.def("open_streams", &open_streams);
  module.def("stream_address",
             [](int32_t id) { return reinterpret_cast<uintptr_t>(stream_handle(id)); });
  module.def("check_submission", [](const char* operation) {
    ruda_error error{};
    python::check(check_submission(nullptr, operation, &error), error);
  });
}

}  // namespace

void bind_runtime(py::module_& module) {
  module.def("memory_stats", &memory_stats_dict);
  module.def("reset_peak_memory_stats", &reset_peak_memory_stats);
  module.def("empty_cache", &empty_cache, py::call_guard<py::gil_scoped_release>());
  module.def("system_memory_total", &system_memory_total);
  module.def("system_memory_free", &system_memory_free);

  module.def("num_threads", &num_threads);
  module.def("started_workers", &started_workers);
  module.def("set_num_threads", [](int32_t count) {
    ruda_error error{};
    int32_t status;
    {
      const py::gil_scoped_release unlocked;  // another thread's loop may need the lock to end
      status = set_num_threads(count, &error);
    }
    python::check(status, error);
  });

  module.def("cpu_count", &cpu_count);
  module.def("cpu_level", &cpu_level);
  module.def("launch_count", &launch_count);
  module.def("kernels", [] {
    py::list result;
    for (const kernel_info& each : list_kernels())
      result.append(py::make_tuple(each.name, each.package, each.layout, each.launches));
    return result;
  });
  module.attr("max_streams") = settings().max_streams;
  module.attr("memory_limit") = settings().memory_limit;
  module.attr("poison") = settings().poison;
  bind_streams(module);
}

}  // namespace ruda::native
