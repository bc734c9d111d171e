// Functions of the host that run in a stream's order.
#pragma once

#include "reports.hpp"
#include "streams.hpp"

namespace driver_double {

// True in a thread that runs such a function: it may not call the driver.
inline thread_local bool in_host_function = false;

struct host_operation final : operation {
  host_operation(CUhostFn called, void* argument)
      : operation(type::host), function(called), data(argument) {}
  CUresult run(stream&) override {
    ++counters::get().host_functions;
    in_host_function = true;
    function(data);
    in_host_function = false;
    return CUDA_SUCCESS;
  }
  CUhostFn function;
  void* data;
};

struct callback_operation final : operation {
  callback_operation(void (*called)(CUstream, CUresult, void*), CUstream on_stream, void* argument)
      : operation(type::host), function(called), handle(on_stream), data(argument) {}
  CUresult run(stream&) override {
    ++counters::get().host_functions;
    in_host_function = true;
    function(handle, CUDA_SUCCESS, data);
    in_host_function = false;
    return CUDA_SUCCESS;
  }
  void (*function)(CUstream, CUresult, void*);
  CUstream handle;
  void* data;
};

}  // namespace driver_double
