#include "capture.hpp"

#include "entry.hpp"
#include "graphs.hpp"
#include "reports.hpp"

#include <algorithm>

namespace driver_double {

std::recursive_mutex capture_mutex;
thread_local int thread_capture_mode = 0;

namespace {

std::atomic<int> active{0};
uint64_t next_id = 1;

std::vector<capture*>& captures() {
  static auto& made = *new std::vector<capture*>;
  return made;
}

}  // namespace

CUresult invalidate(capture& broken, CUresult code, const char* call, const char* why) {
  broken.invalid = true;
  return report(code, "[%s] %s; the capture on %s is lost", call, why, broken.origin.name());
}

namespace {

struct record_operation final : operation {
  explicit record_operation(event& to_record) : operation(type::record), recorded(to_record) {}
  CUresult run(stream& on) override {
    auto made = std::make_shared<event::recording>();
    made->place = {&on, on.completed()};  // passed already
    made->nanoseconds = now_nanoseconds();
    std::lock_guard lock(recorded.mutex);
    recorded.capture_id = 0;
    recorded.last = std::move(made);
    return CUDA_SUCCESS;
  }
  event& recorded;
};

}  // namespace

void begin_capture(capture& begun) {
  begun.id = next_id++;
  begun.origin.capturing = &begun;
  captures().push_back(&begun);
  ++active;
}

void end_capture(capture& ended) {
  for (auto& [each, nodes] : ended.ends) each->capturing = nullptr;
  std::erase(captures(), &ended);
  --active;
}

CUresult capture_work(const char* call, stream& to, std::shared_ptr<operation> work) {
  std::lock_guard lock(capture_mutex);
  capture* into = to.capturing;
  if (into == nullptr) return submit(call, to, std::move(work));
  if (into->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto& ends = into->ends[&to];
  ends = {into->into.add(std::move(work), ends)};
  return CUDA_SUCCESS;
}

CUresult capture_record(stream& on, event& recorded, bool external) {
  std::lock_guard lock(capture_mutex);
  capture* found = on.capturing;
  if (found == nullptr) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;  // it ended meanwhile
  capture& into = *found;
  if (into.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external) {
    return capture_work("cuEventRecord", on, std::make_shared<record_operation>(recorded));
  }
  std::lock_guard event_lock(recorded.mutex);
  recorded.capture_id = into.id;
  recorded.captured_after = into.ends[&on];
  return CUDA_SUCCESS;
}

CUresult capture_wait(stream& on, event& awaited) {
  const char* call = "cuStreamWaitEvent";
  std::lock_guard lock(capture_mutex);
  std::lock_guard event_lock(awaited.mutex);
  capture* own = on.capturing;
  if (awaited.capture_id == 0) {
    if (own == nullptr) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;  // it ended meanwhile
    return invalidate(*own, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, call,
                      "the event was recorded outside the capture, or never");
  }
  auto found = std::find_if(captures().begin(), captures().end(),
                            [&](capture* each) { return each->id == awaited.capture_id; });
  if (found == captures().end()) {
    return report(CUDA_ERROR_CAPTURED_EVENT,
                  "[%s] the event was last recorded in a capture that has ended: record it again",
                  call);
  }
  capture& into = **found;
  if (own != nullptr && own != &into) {
    into.invalid = true;
    return invalidate(*own, CUDA_ERROR_STREAM_CAPTURE_MERGE, call,
                      "the event belongs to another capture");
  }
  if (into.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (&on == on.in.legacy) {
    return invalidate(into, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call,
                      "the default stream cannot join a capture");
  }
  on.capturing = &into;
  auto& ends = into.ends[&on];
  ends.insert(ends.end(), awaited.captured_after.begin(), awaited.captured_after.end());
  return CUDA_SUCCESS;
}

void abandon_capture(stream& destroyed) {
  std::lock_guard lock(capture_mutex);
  capture& broken = *destroyed.capturing.load();
  invalidate(broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamDestroy",
             "a capturing stream was destroyed");
  if (&broken.origin != &destroyed) {
    broken.ends.erase(&destroyed);
    return;
  }
  end_capture(broken);
  broken.into.is = handle::kind::dead;
  --counters::get().live_graphs;
  delete &broken;
}

CUresult refuse_capture(const char* call, const stream& on) {
  if (on.capturing == nullptr) return CUDA_SUCCESS;
  std::lock_guard lock(capture_mutex);
  capture* found = on.capturing;
  if (found == nullptr) return CUDA_SUCCESS;
  return invalidate(*found, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call,
                    "a capturing stream cannot do this");
}

CUresult refuse_unsafe(const char* call) {
  if (active.load(std::memory_order_relaxed) == 0 || thread_capture_mode == 2) return CUDA_SUCCESS;
  std::lock_guard lock(capture_mutex);
  for (capture* each : captures()) {
    bool own = each->thread == std::this_thread::get_id() && each->mode != 2;
    if (own || (thread_capture_mode == 0 && each->mode == 0)) {
      return invalidate(*each, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call,
                        "not permitted while a stream captures");
    }
  }
  return CUDA_SUCCESS;
}

CUresult refuse_implicit(const char* call, context& in) {
  if (active.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  std::lock_guard lock(capture_mutex);
  for (capture* each : captures()) {
    for (auto& [member, nodes] : each->ends) {
      if (&member->in == &in && member->blocking()) {
        return invalidate(*each, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, call,
                          "the default stream would depend on a capturing stream");
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult refuse_any_capture(const char* call, context& in) {
  if (active.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  std::lock_guard lock(capture_mutex);
  for (capture* each : captures()) {
    if (&each->origin.in == &in) {
      return invalidate(*each, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call,
                        "not permitted while a stream of the context captures");
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace driver_double
