// CUDA graphs: capture of a stream, and the executable graph that replays launch.
#pragma once

#include <ruda/abi.h>

#include "../capture.hpp"
#include "types.hpp"

namespace ruda::native::cuda {

// Calls that a capturing thread may not make, such as loading a module, are allowed while this lives.
class outside_capture {
 public:
  outside_capture() noexcept;
  ~outside_capture();
  outside_capture(const outside_capture&) = delete;

 private:
  bool active_;
  int mode_;
};

int32_t begin_capture(int32_t id, ruda_error* error) noexcept;
// Gives `into` the driver's graph, and steps for the work that other libraries put into it.
int32_t end_capture(int32_t id, recording& into, ruda_error* error) noexcept;
void abandon_capture(int32_t id) noexcept;

int32_t instantiate(const recording& from, CUgraphExec* made, ruda_error* error) noexcept;
int32_t launch_graph(CUgraphExec graph, int32_t id, ruda_error* error) noexcept;
// The arguments of `from` in an executable graph of the same work.
int32_t update_graph(CUgraphExec graph, const recording& from, ruda_error* error) noexcept;

// Null is allowed.
void destroy_graph(void* graph) noexcept;
void destroy_executable(CUgraphExec graph) noexcept;

}  // namespace ruda::native::cuda
