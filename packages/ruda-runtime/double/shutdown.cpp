// The end of the process: what was left alive, and the end of the server.

#include "entry.hpp"
#include "memory.hpp"
#include "reports.hpp"
#include "server_link.hpp"
#include "settings.hpp"

#include <cstdio>

namespace driver_double {
namespace {

void report_leaks() {
  const counters& now = counters::get();
  const struct {
    const char* what;
    int64_t count;
  } left[] = {{"allocations of device memory", now.live_allocations},
              {"allocations of host memory", now.live_host_allocations},
              {"memory pools", now.live_pools},
              {"streams", now.live_streams},
              {"events", now.live_events},
              {"modules and libraries", now.live_modules},
              {"graphs", now.live_graphs},
              {"executable graphs", now.live_graph_execs}};
  std::string text;
  for (const auto& each : left) {
    if (each.count == 0) continue;
    text += text.empty() ? "" : ", ";
    text += std::to_string(each.count) + " " + each.what;
  }
  if (text.empty()) return;
  std::fprintf(stderr, "[driver double] alive at exit: %s\n", text.c_str());
  constexpr size_t shown = 10;
  for (const std::string& each : describe_live(shown)) {
    std::fprintf(stderr, "[driver double]   %s\n", each.c_str());
  }
}

__attribute__((destructor)) void at_exit() {
  if (!initialised()) return;  // never used, or a forked child
  server_link::get().stop();
  if (settings::get().leaks) report_leaks();
}

}  // namespace
}  // namespace driver_double
