// The Python module `ruda_torch._native`. Importing it registers operators only; attach() connects
// it with ruda-runtime and registers the device.

#include "alias.h"
#include "allocator.h"
#include "counters.h"
#include "cpu_allocator_proxy.h"
#include "generator.h"
#include "guard.h"
#include "hooks.h"
#include "pinned.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"
#include "threads.h"

#include "ops/boxed.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace ruda_torch {

namespace {

// `first_use` is called before the device's first use: it settles the target. `memory_info` gives the
// device's free and total bytes. `asynchronous`: how work is dispatched in this process.
void attach(const py::object& capsule, py::function first_use, py::function memory_info,
            bool asynchronous) {
  static bool attached = false;
  if (attached) return;
  auto* table = static_cast<const ruda_api*>(
      PyCapsule_GetPointer(capsule.ptr(), RUDA_CAPSULE_NAME));
  if (table == nullptr) throw py::error_already_set();
  TORCH_CHECK(!c10::impl::hasDeviceGuardImpl(kRuda), "[ruda_torch] another library has already "
              "registered a PrivateUse1 device in this process; PyTorch has room for one");
  set_api(table);
  set_asynchronous(asynchronous);
  follow_aten_threads();
  c10::SetAllocator(kRuda, ruda_allocator());
  register_guard();
  register_hooks();
  register_pinned_allocator();
  install_cpu_allocator_proxy();
  watch_forks();
  on_first_use([call = new py::function(std::move(first_use))] {
    const py::gil_scoped_acquire gil;
    (*call)();
  });
  // The functions are never freed: the device may be used while the interpreter shuts down.
  on_memory_info([call = new py::function(std::move(memory_info))] {
    const py::gil_scoped_acquire gil;
    return (*call)().cast<std::pair<size_t, size_t>>();
  });
  attached = true;
}

py::dict execution_counts() {
  const Counters& all = counters();
  py::dict result;
  result["native_launches"] = api()->launch_count();
  result["library_calls"] = all.library_calls.load();
  result["transfers_to_device"] = all.transfers_to_device.load();
  result["transfers_to_host"] = all.transfers_to_host.load();
  result["bytes_to_device"] = all.bytes_to_device.load();
  result["bytes_to_host"] = all.bytes_to_host.load();
  return result;
}

// Doors for the package's own tests to what otherwise only operators reach.
void add_testing(py::module_ parent) {
  py::module_ m = parent.def_submodule("testing");
  m.def("alias_as_cpu", torch::wrap_pybind_function(&alias_as_cpu));
  m.def("adopt_as_ruda", torch::wrap_pybind_function(&adopt_as_ruda));
  m.def("sync_alias", torch::wrap_pybind_function(&sync_alias));
  // Calls `body()` as an operator's kernel is called: with the CPU allocator giving pool memory.
  m.def("inside_ruda", torch::wrap_pybind_function([](const py::function& body) -> py::object {
          const InsideRuda inside;
          return body();
        }));
  m.def("is_pool_memory", torch::wrap_pybind_function(
                              [](const at::Tensor& tensor) { return pool_owns(tensor.data_ptr()); }));
  m.def("reserve_random", torch::wrap_pybind_function(
                              [](const std::optional<at::Generator>& generator, uint64_t count) {
                                const PhiloxRange range = reserve_random(generator, count);
                                return std::pair(range.seed, range.offset);
                              }));
  m.def("serve_boxed", torch::wrap_pybind_function(&serve_boxed));
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.attr("abi_version") = RUDA_ABI_VERSION;
  m.attr("torch_minor") = RUDA_TORCH_BUILT_FOR;
  m.def("attach", torch::wrap_pybind_function(&attach), py::arg("api"), py::arg("first_use"),
        py::arg("memory_info"), py::arg("asynchronous") = false);
  m.def("initialize", torch::wrap_pybind_function([] { ensure_usable(); }));
  m.def("is_initialized", &is_initialized);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("default_generator", torch::wrap_pybind_function([](int index) {
          return default_generator(static_cast<c10::DeviceIndex>(index));
        }));
  m.def("acquire_stream", torch::wrap_pybind_function([](int priority) {
          return static_cast<int64_t>(acquire_stream(priority).id());
        }));
  m.def("release_stream", torch::wrap_pybind_function([](int64_t id) { release_stream(id); }));
  m.def("host_operators", &host_operators);
  m.def("elapsed_time", [](uintptr_t begin, uintptr_t end) {
    const auto* guard = c10::impl::getDeviceGuardImpl(kRuda);
    return guard->elapsedTime(reinterpret_cast<void*>(begin), reinterpret_cast<void*>(end), 0);
  });
  m.def("execution_counts", torch::wrap_pybind_function(&execution_counts));
  add_testing(m);
}

}  // namespace ruda_torch
