#include "events.hpp"

#include "capture.hpp"
#include "entry.hpp"
#include "reports.hpp"

#include <chrono>

namespace driver_double {
namespace {

CUresult need_event(const char* call, CUevent handle) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (valid(handle)) [[likely]]
    return CUDA_SUCCESS;
  return report(CUDA_ERROR_INVALID_HANDLE, "[%s] %p is no event, or an event that was destroyed",
                call, static_cast<void*>(handle));
}

struct stamp_operation final : operation {
  explicit stamp_operation(std::shared_ptr<event::recording> recorded)
      : operation(type::empty), made(std::move(recorded)) {}
  CUresult run(stream&) override {
    made->nanoseconds.store(now_nanoseconds(), std::memory_order_relaxed);
    return CUDA_SUCCESS;
  }
  std::shared_ptr<event::recording> made;
};

// The last recording; a captured or an unrecorded event gives an error.
CUresult last_recording(const char* call, event& of, std::shared_ptr<event::recording>* out) {
  std::lock_guard lock(of.mutex);
  if (of.capture_id != 0) {
    return report(CUDA_ERROR_CAPTURED_EVENT,
                  "[%s] event %p was last recorded in a stream capture: it has no time of its own",
                  call, static_cast<void*>(&of));
  }
  *out = of.last;
  return CUDA_SUCCESS;
}

bool done(const event::recording& made) { return made.place.on->completed() >= made.place.number; }

}  // namespace

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

CUresult record_event(stream& on, CUevent handle, bool external) {
  if (CUresult code = need_event("cuEventRecord", handle); code != CUDA_SUCCESS) return code;
  if (&handle->in != &on.in) {
    return report(CUDA_ERROR_INVALID_HANDLE,
                  "[cuEventRecord] event %p and %s belong to different contexts",
                  static_cast<void*>(handle), on.name());
  }
  if (on.capturing != nullptr) return capture_record(on, *handle, external);
  auto made = std::make_shared<event::recording>();
  // Nothing before it and nothing to note: the place is enough.
  if (!handle->timing() && &on != on.in.legacy) {
    made->place = {&on, on.submitted()};
  } else if (CUresult code =
                 submit("cuEventRecord", on, std::make_shared<stamp_operation>(made), &made->place);
             code != CUDA_SUCCESS) {
    return code;
  }
  std::lock_guard lock(handle->mutex);
  handle->capture_id = 0;
  handle->captured_after.clear();
  handle->last = std::move(made);
  return CUDA_SUCCESS;
}

CUresult wait_event(stream& on, CUevent handle) {
  if (CUresult code = need_event("cuStreamWaitEvent", handle); code != CUDA_SUCCESS) return code;
  std::unique_lock lock(handle->mutex);
  if (handle->capture_id != 0 || on.capturing != nullptr) {
    lock.unlock();
    return capture_wait(on, *handle);
  }
  std::shared_ptr<event::recording> awaited = handle->last;
  lock.unlock();
  if (awaited == nullptr) {
    return report(CUDA_ERROR_INVALID_HANDLE,
                  "[cuStreamWaitEvent] event %p was never recorded, so %s would wait for nothing: "
                  "record it before the wait",
                  static_cast<void*>(handle), on.name());
  }
  if (done(*awaited)) return CUDA_SUCCESS;
  return submit_wait(on, awaited->place);
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  context* current = nullptr;
  if (CUresult code = need_context("cuEventCreate", &current); code != CUDA_SUCCESS) return code;
  bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (out == nullptr || flags > 7 || (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (shared) return CUDA_ERROR_NOT_SUPPORTED;
  *out = new event(*current, flags);
  ++counters::get().live_events;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuEventDestroy_v2(CUevent destroyed) {
  if (CUresult code = need_event("cuEventDestroy", destroyed); code != CUDA_SUCCESS) return code;
  std::lock_guard lock(destroyed->mutex);
  destroyed->is = handle::kind::dead;
  destroyed->last.reset();
  --counters::get().live_events;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuEventRecordWithFlags(CUevent recorded, CUstream handle, unsigned flags) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuEventRecord", handle, &on); code != CUDA_SUCCESS) return code;
  if (flags > CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  return record_event(*on, recorded, flags == CU_EVENT_RECORD_EXTERNAL);
}

DRIVER_API CUresult cuEventRecord(CUevent recorded, CUstream handle) {
  return cuEventRecordWithFlags(recorded, handle, 0);
}

// As the driver has it: an event that was never recorded counts as done.
DRIVER_API CUresult cuEventQuery(CUevent queried) {
  if (CUresult code = need_event("cuEventQuery", queried); code != CUDA_SUCCESS) return code;
  std::shared_ptr<event::recording> last;
  if (CUresult code = last_recording("cuEventQuery", *queried, &last); code != CUDA_SUCCESS) {
    return code;
  }
  if (last == nullptr) return CUDA_SUCCESS;
  return done(*last) ? last->place.on->failure() : CUDA_ERROR_NOT_READY;
}

DRIVER_API CUresult cuEventSynchronize(CUevent awaited) {
  if (CUresult code = need_event("cuEventSynchronize", awaited); code != CUDA_SUCCESS) return code;
  std::shared_ptr<event::recording> last;
  if (CUresult code = last_recording("cuEventSynchronize", *awaited, &last); code != CUDA_SUCCESS) {
    return code;
  }
  if (last == nullptr) {
    return report(CUDA_ERROR_INVALID_HANDLE,
                  "[cuEventSynchronize] event %p was never recorded: there is nothing to wait for",
                  static_cast<void*>(awaited));
  }
  last->place.on->wait(last->place.number);
  return last->place.on->take_failure();
}

DRIVER_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  const char* call = "cuEventElapsedTime";
  std::shared_ptr<event::recording> from, to;
  for (auto [each, out] : {std::pair{start, &from}, std::pair{end, &to}}) {
    if (CUresult code = need_event(call, each); code != CUDA_SUCCESS) return code;
    if (!each->timing()) {
      return report(CUDA_ERROR_INVALID_HANDLE,
                    "[%s] event %p was made with CU_EVENT_DISABLE_TIMING", call,
                    static_cast<void*>(each));
    }
    if (CUresult code = last_recording(call, *each, out); code != CUDA_SUCCESS) return code;
    if (*out == nullptr) {
      return report(CUDA_ERROR_INVALID_HANDLE, "[%s] the %s event %p was never recorded", call,
                    each == start ? "start" : "end", static_cast<void*>(each));
    }
  }
  if (!done(*from) || !done(*to)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(to->nanoseconds - from->nanoseconds) * 1e-6f;
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuEventCreate>("cuEventCreate", 2000),
    entry<&cuEventDestroy_v2>("cuEventDestroy", 4000),
    entry<&cuEventRecord>("cuEventRecord", 2000),
    entry<&cuEventRecordWithFlags>("cuEventRecordWithFlags", 11010),
    entry<&cuEventQuery>("cuEventQuery", 2000),
    entry<&cuEventSynchronize>("cuEventSynchronize", 2000),
    entry<&cuEventElapsedTime_v2>("cuEventElapsedTime", 2000),
    entry<&cuEventElapsedTime_v2>("cuEventElapsedTime", 12080),
};
}
