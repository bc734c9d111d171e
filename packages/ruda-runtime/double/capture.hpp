// Stream capture: work that would be queued becomes nodes of a graph.
#pragma once

#include "events.hpp"
#include "streams.hpp"

namespace driver_double {

extern std::recursive_mutex capture_mutex;    // guards all captures
extern thread_local int thread_capture_mode;  // which captures of others a thread must respect

void begin_capture(capture& begun);
void end_capture(capture& ended);
CUresult invalidate(capture& broken, CUresult code, const char* call, const char* why);

CUresult capture_work(const char* call, stream& to, std::shared_ptr<operation> work);
CUresult capture_record(stream& on, event& recorded, bool external);
CUresult capture_wait(stream& on, event& awaited);
void abandon_capture(stream& destroyed);

// A call that could wait for, or depend on, work of a capture that this thread must respect.
CUresult refuse_unsafe(const char* call);
// The default stream depends on all blocking streams, so none of them may capture.
CUresult refuse_implicit(const char* call, context& in);
CUresult refuse_any_capture(const char* call, context& in);

}  // namespace driver_double
