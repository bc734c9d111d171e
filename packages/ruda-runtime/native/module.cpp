// The Python module ruda_runtime._native.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>

#include <ruda/entry.hpp>

#include "allocator.hpp"
#include "api.hpp"
#include "environment.hpp"
#include "kernels.hpp"
#include "streams.hpp"
#include "system.hpp"
#include "thread_pool.hpp"

namespace py = pybind11;
namespace native = ruda::native;

PYBIND11_MODULE(_native, module) {
  module.attr("abi_version") = RUDA_ABI_VERSION;

  const std::string wrong = native::read_environment();
  if (!wrong.empty()) throw py::value_error(wrong);
  native::prepare_allocator();
  native::prepare_thread_pool();
  ruda_error error{};
  if (ruda::attach(&native::api_table(), "ruda_runtime", &error) != RUDA_OK)
    throw std::runtime_error(error.message);

  module.attr("api") = py::capsule(&native::api_table(), RUDA_CAPSULE_NAME);
}
