// The Python module ruda_runtime._native.

#include <pybind11/pybind11.h>

#include <stdexcept>

#include <ruda/entry.hpp>

#include "allocator.hpp"
#include "api.hpp"
#include "bindings.hpp"
#include "environment.hpp"
#include "streams.hpp"
#include "thread_pool.hpp"

PYBIND11_MODULE(_native, module) {
  namespace native = ruda::native;
  module.attr("abi_version") = RUDA_ABI_VERSION;

  // The package raises it: an exception from here would arrive as an ImportError.
  module.attr("environment_error") = native::read_environment();
  native::prepare_allocator();
  native::prepare_thread_pool();
  native::prepare_streams();
  ruda_error error{};
  if (ruda::attach(&native::api_table(), "ruda_runtime", &error) != RUDA_OK)
    throw std::runtime_error(error.message);

  module.attr("api") = pybind11::capsule(&native::api_table(), RUDA_CAPSULE_NAME);
  native::bind_runtime(module);
  native::bind_tensor(module);
  native::bind_cuda(module);
  native::bind_kernel(module);
  native::bind_graph(module);
}
