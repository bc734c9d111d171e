#include "reports.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

namespace driver_double {
namespace {

constexpr size_t kept_reports = 1000;  // the first ones matter

struct report_list {
  std::mutex mutex;
  std::deque<std::string> texts;  // addresses stay valid while it grows
  int64_t count = 0;
  std::string last;
};

report_list& list() {
  static report_list& made = *new report_list;
  return made;
}

struct named_counter {
  const char* name;
  std::atomic<int64_t> counters::* value;
};

thread_local std::string newest_of_thread, told;

constexpr named_counter names[] = {
    {"launches", &counters::launches},
    {"grid_x", &counters::grid_x},
    {"grid_y", &counters::grid_y},
    {"grid_z", &counters::grid_z},
    {"interpreted", &counters::interpreted},
    {"copies", &counters::copies},
    {"sets", &counters::sets},
    {"allocations", &counters::allocations},
    {"frees", &counters::frees},
    {"graph_launches", &counters::graph_launches},
    {"host_functions", &counters::host_functions},
    {"live_allocations", &counters::live_allocations},
    {"live_bytes", &counters::live_bytes},
    {"live_host_allocations", &counters::live_host_allocations},
    {"live_streams", &counters::live_streams},
    {"live_events", &counters::live_events},
    {"live_modules", &counters::live_modules},
    {"live_graphs", &counters::live_graphs},
    {"live_graph_execs", &counters::live_graph_execs},
    {"live_pools", &counters::live_pools},
};

}  // namespace

counters& counters::get() {
  static counters& made = *new counters;
  return made;
}

CUresult report(CUresult code, const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  newest_of_thread = text;
  report_list& all = list();
  std::lock_guard lock(all.mutex);
  ++all.count;
  all.last = text;
  if (all.texts.size() < kept_reports) all.texts.emplace_back(text);
  return code;
}

const std::string& thread_report() { return newest_of_thread; }
void tell_failure(std::string text) { told = std::move(text); }

int64_t report_count() {
  std::lock_guard lock(list().mutex);
  return list().count;
}

}  // namespace driver_double

using namespace driver_double;

// The text stays valid until the calling thread's next call of this function.
DRIVER_API const char* ruda_double_last_report() {
  thread_local std::string copy;
  std::lock_guard lock(list().mutex);
  copy = list().last;
  return copy.c_str();
}

// Why the work failed whose error a call of this thread handed over last; empty when asked again.
DRIVER_API const char* ruda_double_failure() {
  thread_local std::string copy;
  copy = std::exchange(told, "");
  return copy.c_str();
}

DRIVER_API int64_t ruda_double_report_count() { return report_count(); }

// The index-th report since the last clear, or null; at most the first thousand are kept.
DRIVER_API const char* ruda_double_report(int64_t index) {
  std::lock_guard lock(list().mutex);
  if (index < 0 || index >= static_cast<int64_t>(list().texts.size())) return nullptr;
  return list().texts[static_cast<size_t>(index)].c_str();
}

DRIVER_API void ruda_double_clear_reports() {
  std::lock_guard lock(list().mutex);
  list().texts.clear();
  list().last.clear();
  list().count = 0;
}

// -1: there is no counter of that name.
DRIVER_API int64_t ruda_double_counter(const char* name) {
  for (const named_counter& each : names) {
    if (std::strcmp(each.name, name) == 0) return (counters::get().*each.value).load();
  }
  return -1;
}

// The name of the index-th counter, or null.
DRIVER_API const char* ruda_double_counter_name(int64_t index) {
  constexpr int64_t count = sizeof names / sizeof names[0];
  return index >= 0 && index < count ? names[index].name : nullptr;
}
