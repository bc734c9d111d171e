// Memory, threads, kernels and streams as Python functions; the public modules wrap them.

#include <pybind11/stl.h>

#include <ruda/python.hpp>

#include "allocator.hpp"
#include "bindings.hpp"
#include "capture.hpp"
#include "environment.hpp"
#include "events.hpp"
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

// Calls a function that may wait, without the interpreter lock, and raises its error.
template <class Call>
void checked(Call&& call) {
  ruda_error error{};
  int32_t status;
  {
    const py::gil_scoped_release unlocked;
    status = call(&error);
  }
  python::check(status, error);
}

class event {
 public:
  explicit event(bool timing) : handle_(create_event(timing ? 1 : 0)) {
    if (handle_ == nullptr) throw std::bad_alloc();
  }
  event(const event&) = delete;
  ~event() { destroy_event(handle_); }

  void record(int32_t stream) {
    checked([&](ruda_error* error) { return record_event(handle_, stream, error); });
  }
  void wait(int32_t stream) {
    checked([&](ruda_error* error) { return wait_event(stream, handle_, error); });
  }
  bool query() const { return query_event(handle_) != 0; }
  void synchronize() {
    checked([&](ruda_error* error) { return synchronize_event(handle_, error); });
  }
  double elapsed(const event& end) const {
    double milliseconds = 0;
    checked([&](ruda_error* error) {
      return elapsed_time(handle_, end.handle_, &milliseconds, error);
    });
    return milliseconds;
  }

 private:
  ruda_event handle_;
};

void bind_streams(py::module_& module) {
  module.def("open_stream", [] {
    int32_t id = 0;
    checked([&](ruda_error* error) { return open_stream(&id, error); });
    return id;
  });
  module.def("close_stream", [](int32_t id) {
    checked([&](ruda_error* error) { return close_stream(id, error); });
  });
  module.def("set_current_stream", [](int32_t id) {
    ruda_error error{};
    python::check(set_current_stream(id, &error), error);
  });
  module.def("current_stream", &current_stream);
  module.def("open_streams", &open_streams);
  module.def("stream_address",
             [](int32_t id) { return reinterpret_cast<uintptr_t>(stream_handle(id)); });
  module.def("asynchronous", [] { return asynchronous() != 0; });
  module.def("query_stream", [](int32_t id) {
    ruda_error error{};
    python::check(refuse_captured(id, "query", &error), error);
    return query_stream(id) != 0;
  });
  module.def("synchronize", [](int32_t id) {
    checked([&](ruda_error* error) { return synchronize(id, error); });
  });
  module.def("wait_stream", [](int32_t id, int32_t other) {
    checked([&](ruda_error* error) { return wait_stream(id, other, error); });
  });
  module.def("record_stream", [](uintptr_t address, int32_t id) {
    checked([&](ruda_error* error) {
      return record_stream(reinterpret_cast<const void*>(address), id, error);
    });
  });
  py::class_<event>(module, "Event")
      .def(py::init<bool>())
      .def("record", &event::record)
      .def("wait", &event::wait)
      .def("query", &event::query)
      .def("synchronize", &event::synchronize)
      .def("elapsed", &event::elapsed);
  // Work in flight when the interpreter ends would meet libraries that are being taken apart.
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { shut_down_streams(); }, py::call_guard<py::gil_scoped_release>()));
}

}  // namespace

void bind_runtime(py::module_& module) {
  module.def("memory_stats", &memory_stats_dict);
  module.def("reset_peak_memory_stats", &reset_peak_memory_stats);
  module.def("empty_cache", [] {
    checked([](ruda_error* error) -> int32_t {
      RUDA_TRY(refuse_captured(-1, "empty_cache", error));
      empty_cache();
      return RUDA_OK;
    });
  });
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
