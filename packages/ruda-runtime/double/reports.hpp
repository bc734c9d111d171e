// Violations in words, and counters of what happened and what is alive.
#pragma once

#include "driver_types.hpp"

#include <atomic>
#include <cstdint>
#include <string>

namespace driver_double {

// Keeps a violation's text and gives the code back, so that a check is `return report(...)`.
CUresult report(CUresult code, const char* format, ...) __attribute__((format(printf, 2, 3)));

struct counters {
  std::atomic<int64_t> launches{0};     // kernel launches accepted, replays of graphs included
  std::atomic<int64_t> grid_x{0};       // sums of the launches' grids
  std::atomic<int64_t> grid_y{0};
  std::atomic<int64_t> grid_z{0};
  std::atomic<int64_t> interpreted{0};  // launches that the server has run
  std::atomic<int64_t> copies{0};
  std::atomic<int64_t> sets{0};
  std::atomic<int64_t> allocations{0};  // ever made, device memory
  std::atomic<int64_t> frees{0};
  std::atomic<int64_t> graph_launches{0};
  std::atomic<int64_t> host_functions{0};
  std::atomic<int64_t> live_allocations{0};
  std::atomic<int64_t> live_bytes{0};
  std::atomic<int64_t> live_host_allocations{0};
  std::atomic<int64_t> live_streams{0};  // made by cuStreamCreate
  std::atomic<int64_t> live_events{0};
  std::atomic<int64_t> live_modules{0};  // libraries included
  std::atomic<int64_t> live_graphs{0};
  std::atomic<int64_t> live_graph_execs{0};
  std::atomic<int64_t> live_pools{0};  // made by cuMemPoolCreate

  static counters& get();
};

int64_t report_count();

// The newest report of the calling thread, and the failure that it is told of now.
const std::string& thread_report();
void tell_failure(std::string text);

}  // namespace driver_double
