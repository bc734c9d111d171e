// Device kernels in Python: definition, plans and launches.

#include <pybind11/stl.h>

#include <ruda/python.hpp>

#include "bindings.hpp"
#include "cuda/kernel.hpp"
#include "bindings_arguments.hpp"
#include "streams.hpp"

namespace ruda::native {
namespace {

namespace py = pybind11;

// Never destroyed: a launch may come while the interpreter takes modules apart.
PyObject* resolver = nullptr;
PyObject* finder = nullptr;

// The exception that resolving ended with: a launch from Python raises it again, with its traceback.
thread_local PyObject* pending = nullptr;

void keep_pending(py::error_already_set& caught) {
  Py_XDECREF(pending);
  pending = caught.value().inc_ref().ptr();
}

[[noreturn]] void raise_launch(const ruda_error& error) {
  if (pending == nullptr) python::throw_error(error);
  PyObject* raised = std::exchange(pending, nullptr);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
  Py_DECREF(raised);
  throw py::error_already_set();
}

int32_t code_of(py::error_already_set& caught) {
  const py::module_ errors = py::module_::import("ruda_runtime.errors");
  const std::pair<const char*, int32_t> classes[] = {
      {"RudaValueError", RUDA_ERROR_VALUE},
      {"RudaTypeError", RUDA_ERROR_TYPE},
      {"UnsupportedError", RUDA_ERROR_UNSUPPORTED},
      {"OutOfMemoryError", RUDA_ERROR_MEMORY},
  };
  for (const auto& [name, code] : classes)
    if (caught.matches(errors.attr(name))) return code;
  return RUDA_ERROR_RUNTIME;
}

py::object constant_value(const cuda::constant& value) {
  switch (value.kind) {
    case RUDA_ARGUMENT_INTEGER: return py::int_(value.integer);
    case RUDA_ARGUMENT_REAL: return py::float_(value.real);
    case RUDA_ARGUMENT_BOOLEAN: return py::bool_(value.integer != 0);
    case RUDA_ARGUMENT_TEXT: return py::str(value.text);
    default: return py::none();
  }
}

// ("pointer", dtype, divisible) | ("none",) | ("scalar", divisible, one) | ("constant", value)
py::list facts_list(const ruda_device_kernel& kernel, const std::vector<cuda::fact>& facts,
                    const std::vector<cuda::constant>& constants) {
  py::list result;
  for (size_t i = 0; i < facts.size(); ++i) {
    const cuda::fact& each = facts[i];
    switch (kernel.parameters[i].type) {
      case cuda::parameter_type::constant:
        result.append(py::make_tuple("constant", constant_value(constants[i])));
        break;
      case cuda::parameter_type::pointer:
        if (each.absent) {
          result.append(py::make_tuple("none"));
        } else {
          result.append(py::make_tuple("pointer", dtype_name(each.dtype), each.divisible));
        }
        break;
      default: result.append(py::make_tuple("scalar", each.divisible, each.one));
    }
  }
  return result;
}

int32_t plan_of(const ruda_device_kernel& kernel, const std::vector<cuda::fact>& facts,
                const py::object& made, std::unique_ptr<ruda_plan>* plan, ruda_error* error) {
  cuda::image source;
  source.hash = made.attr("image_hash").cast<std::string>();
  source.bytes = made.attr("image").cast<std::string>();
  source.entry = made.attr("entry").cast<std::string>();
  source.description = made.attr("description").cast<std::string>();
  source.shared_bytes = made.attr("shared_bytes").cast<unsigned>();
  auto result = std::make_unique<ruda_plan>();
  result->kernel = &kernel;
  result->threads = made.attr("threads").cast<uint32_t>();
  result->shared_bytes = source.shared_bytes;
  result->cooperative = kernel.cooperative;
  result->passed = made.attr("passed").cast<std::vector<uint8_t>>();
  result->scratch_pointers = made.attr("scratch_pointers").cast<int32_t>();
  result->scratch_bytes = made.attr("scratch_bytes").cast<uint64_t>();
  result->profile_bytes = made.attr("profile_bytes").cast<uint64_t>();
  result->promises = facts;
  const auto promises = made.attr("promises").cast<std::vector<std::pair<bool, bool>>>();
  RUDA_CHECK(promises.size() == facts.size(), error, RUDA_ERROR_RUNTIME,
             "[%s] the plan has %zu promises for %zu parameters", kernel.name.c_str(),
             promises.size(), facts.size());
  for (size_t i = 0; i < promises.size(); ++i)
    std::tie(result->promises[i].divisible, result->promises[i].one) = promises[i];
  const py::gil_scoped_release unlocked;
  RUDA_TRY(cuda::load_function(source, kernel.name.c_str(), &result->function, error));
  *plan = std::move(result);
  return RUDA_OK;
}

int32_t resolve_in_python(const ruda_device_kernel& kernel, const std::vector<cuda::fact>& facts,
                          const std::vector<cuda::constant>& constants,
                          const ruda_launch_options& options, std::unique_ptr<ruda_plan>* plan,
                          ruda_error* error) {
  RUDA_CHECK(Py_IsInitialized() != 0, error, RUDA_ERROR_RUNTIME,
             "[%s] the interpreter has ended, and the kernel is not compiled", kernel.name.c_str());
  const py::gil_scoped_acquire locked;
  try {
    const py::object made = py::handle(resolver)(
        kernel.name, facts_list(kernel, facts, constants),
        options.num_warps, options.num_stages);
    return plan_of(kernel, facts, made, plan, error);
  } catch (py::error_already_set& caught) {
    const int32_t code = code_of(caught);
    keep_pending(caught);
    const std::string text = py::str(caught.value()).cast<std::string>();
    if (text.rfind('[', 0) == 0) return fail(error, code, "%s", text.c_str());
    return fail(error, code, "[%s] %s", kernel.name.c_str(), text.c_str());
  }
}

void find_in_python() {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire locked;
  try {
    // A process that only calls entries has not imported it; the import sets the finder.
    if (finder == nullptr) py::module_::import("ruda_runtime.kernel");
    if (finder == nullptr) return;
    if (PyObject* found = PyObject_CallNoArgs(finder)) {
      Py_DECREF(found);
    } else {
      throw py::error_already_set();
    }
  } catch (py::error_already_set& caught) {
    caught.discard_as_unraisable("ruda_runtime.kernel");
  }
}

template <class Call>
void launched(Call&& call) {
  ruda_error error{};
  Py_CLEAR(pending);
  int32_t status;
  {
    const py::gil_scoped_release unlocked;
    status = call(&error);
  }
  if (status != RUDA_OK) raise_launch(error);
}

// A negative number is the current stream.
ruda_stream handle_of(int32_t stream) { return stream < 0 ? nullptr : stream_handle(stream); }

class plan {
 public:
  explicit plan(const ruda_plan& made) : made_(made) {}
  void launch(const py::handle& grid, const py::tuple& positional, const py::dict& named,
              int32_t stream) const {
    kernel_arguments given(*made_.kernel, positional, named, false);
    uint32_t extent[3];
    read_grid(*made_.kernel, grid, extent);
    launched([&](ruda_error* error) {
      return cuda::launch_plan(&made_, given.list, given.count, extent, handle_of(stream), error);
    });
  }
  const ruda_plan& made() const { return made_; }

 private:
  const ruda_plan& made_;
};

class kernel {
 public:
  kernel(std::string name, const py::list& parameters, bool cooperative) {
    auto added = std::make_unique<ruda_device_kernel>();
    added->name = std::move(name);
    added->cooperative = cooperative;
    for (const py::handle& each : parameters) added->parameters.push_back(read_parameter(each));
    ruda_error error{};
    python::check(cuda::define_kernel(std::move(added), &defined_, &error), error);
  }

  void launch(const py::handle& grid, const py::tuple& positional, const py::dict& named,
              int32_t stream) const {
    kernel_arguments given(*defined_, positional, named, true);
    uint32_t extent[3];
    read_grid(*defined_, grid, extent);
    launched([&](ruda_error* error) {
      return cuda::launch_device(defined_, given.list, given.count, &given.options, extent,
                                 handle_of(stream), error);
    });
  }

  plan make_plan(const py::tuple& positional, const py::dict& named) const {
    kernel_arguments given(*defined_, positional, named, true);
    const ruda_plan* found = nullptr;
    launched([&](ruda_error* error) {
      return cuda::find_plan(defined_, given.list, given.count, &given.options, &found, error);
    });
    return plan(*found);
  }

  int64_t launches() const { return defined_->launches.load(); }
  int64_t hits() const { return defined_->hits.load(); }
  size_t plans() const {
    const std::shared_lock lock(defined_->mutex);
    return defined_->plans.size();
  }

 private:
  const ruda_device_kernel* defined_ = nullptr;
};

}  // namespace

void bind_kernel(py::module_& module) {
  module.def("set_plan_resolver", [](py::object called) {
    Py_XDECREF(std::exchange(resolver, called.release().ptr()));
    cuda::set_plan_resolver(resolve_in_python);
  });
  module.def("set_kernel_finder", [](py::object called) {
    Py_XDECREF(std::exchange(finder, called.release().ptr()));
  });
  cuda::set_kernel_finder(find_in_python);
  py::class_<plan>(module, "Plan")
      .def("launch", &plan::launch)
      .def_property_readonly("threads", [](const plan& self) { return self.made().threads; })
      .def_property_readonly("shared_bytes",
                             [](const plan& self) { return self.made().shared_bytes; });
  py::class_<kernel>(module, "DeviceKernel")
      .def(py::init<std::string, py::list, bool>())
      .def("launch", &kernel::launch)
      .def("plan", &kernel::make_plan)
      .def_property_readonly("launches", &kernel::launches)
      .def_property_readonly("hits", &kernel::hits)
      .def_property_readonly("plans", &kernel::plans);
}

}  // namespace ruda::native
