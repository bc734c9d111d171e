// Events: a place in a stream, and the time when it was passed.
#pragma once

#include "streams.hpp"

namespace driver_double {

struct event : handle {
  static constexpr kind kind_of = kind::event;
  event(context& owner, unsigned event_flags) : handle{kind_of}, in(owner), flags(event_flags) {}

  // One recording. A wait refers to the recording that was the last one when it was asked for.
  struct recording {
    position place;
    std::atomic<int64_t> nanoseconds{0};
  };

  context& in;
  const unsigned flags;
  bool timing() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }

  std::mutex mutex;
  std::shared_ptr<recording> last;          // null before the first recording
  uint64_t capture_id = 0;                  // not 0: last recorded in that capture, after
  std::vector<graph_node*> captured_after;  // these nodes
};

CUresult record_event(stream& on, CUevent handle, bool external);
CUresult wait_event(stream& on, CUevent handle);
int64_t now_nanoseconds();

}  // namespace driver_double
