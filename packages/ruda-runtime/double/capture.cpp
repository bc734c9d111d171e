#include "capture.hpp"

#include "entry.hpp"
#include "graphs.hpp"
#include "reports.hpp"

#include <algorithm>
#include <set>

namespace driver_double {
namespace {

std::recursive_mutex capture_mutex;
std::atomic<int> active{0};
uint64_t next_id = 1;

std::vector<capture*>& captures() {
  static auto& made = *new std::vector<capture*>;
  return made;
}

thread_local int thread_mode = 0;

CUresult invalidate(capture& broken, CUresult code, const char* call, const char* why) {
  broken.invalid = true;
  return report(code, "[%s] %s; the capture on %s is lost", call, why, broken.origin.name());
}

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

void end(capture& ended) {
  for (auto& [each, nodes] : ended.ends) each->capturing = nullptr;
  std::erase(captures(), &ended);
  --active;
}

// Is every last node of the other streams before one of the origin's?
bool joined(capture& ended) {
  std::set<graph_node*> reached;
  std::vector<graph_node*> open = ended.ends[&ended.origin];
  while (!open.empty()) {
    graph_node* each = open.back();
    open.pop_back();
    if (reached.insert(each).second) open.insert(open.end(), each->needs.begin(), each->needs.end());
  }
  for (auto& [each, nodes] : ended.ends) {
    for (graph_node* node : nodes) {
      if (!reached.contains(node)) return false;
    }
  }
  return true;
}

}  // namespace

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
  capture& into = *on.capturing;
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
  if (awaited.capture_id == 0) {
    return invalidate(*on.capturing, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, call,
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
  if (on.capturing != nullptr && on.capturing != &into) {
    into.invalid = true;
    return invalidate(*on.capturing, CUDA_ERROR_STREAM_CAPTURE_MERGE, call,
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
  capture& broken = *destroyed.capturing;
  invalidate(broken, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamDestroy",
             "a capturing stream was destroyed");
  if (&broken.origin == &destroyed) end(broken);
  broken.ends.erase(&destroyed);
}

CUresult refuse_capture(const char* call, const stream& on) {
  if (on.capturing == nullptr) return CUDA_SUCCESS;
  std::lock_guard lock(capture_mutex);
  if (on.capturing == nullptr) return CUDA_SUCCESS;
  return invalidate(*on.capturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, call,
                    "a capturing stream cannot do this");
}

CUresult refuse_unsafe(const char* call) {
  if (active.load(std::memory_order_relaxed) == 0 || thread_mode == 2) return CUDA_SUCCESS;
  std::lock_guard lock(capture_mutex);
  for (capture* each : captures()) {
    bool own = each->thread == std::this_thread::get_id() && each->mode != 2;
    if (own || (thread_mode == 0 && each->mode == 0)) {
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

using namespace driver_double;

DRIVER_API CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph into,
                                                const CUgraphNode* needs, const CUgraphEdgeData*,
                                                size_t count, int mode) {
  const char* call = "cuStreamBeginCapture";
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (mode < 0 || mode > 2 || !valid(into)) return CUDA_ERROR_INVALID_VALUE;
  if (on == on->in.legacy) {
    return report(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "[%s] the default stream cannot capture",
                  call);
  }
  std::lock_guard lock(capture_mutex);
  if (on->capturing != nullptr) {
    return report(CUDA_ERROR_ILLEGAL_STATE, "[%s] %s captures already", call, on->name());
  }
  auto* begun = new capture(*into, *on, mode);
  begun->id = next_id++;
  begun->ends[on].assign(needs, needs + count);
  on->capturing = begun;
  captures().push_back(begun);
  ++active;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  auto* into = new graph;
  CUresult code = cuStreamBeginCaptureToGraph(handle, into, nullptr, nullptr, 0, mode);
  if (code != CUDA_SUCCESS) {
    delete into;
  } else {
    ++counters::get().live_graphs;
  }
  return code;
}

DRIVER_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  const char* call = "cuStreamEndCapture";
  stream* on = nullptr;
  if (out != nullptr) *out = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  std::lock_guard lock(capture_mutex);
  capture* ended = on->capturing;
  if (ended == nullptr) {
    return report(CUDA_ERROR_ILLEGAL_STATE, "[%s] %s does not capture", call, on->name());
  }
  if (&ended->origin != on) {
    return invalidate(*ended, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, call,
                      "the capture began on another stream");
  }
  if (ended->mode != 2 && ended->thread != std::this_thread::get_id()) {
    return report(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                  "[%s] the capture on %s began in another thread", call, on->name());
  }
  CUresult code = CUDA_SUCCESS;
  if (ended->invalid) {
    code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!joined(*ended)) {
    code = invalidate(*ended, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, call,
                      "a stream that joined has work behind which nobody waits");
  }
  end(*ended);
  if (code == CUDA_SUCCESS) {
    if (out != nullptr) *out = &ended->into;
  } else {
    ended->into.is = handle::kind::dead;
    --counters::get().live_graphs;
  }
  return code;
}

DRIVER_API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamIsCapturing", handle, &on); code != CUDA_SUCCESS) return code;
  std::lock_guard lock(capture_mutex);
  *status = on->capturing == nullptr ? 0 : on->capturing->invalid ? 2 : 1;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int* status, uint64_t* id,
                                              CUgraph* into, const CUgraphNode** needs,
                                              size_t* count) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamGetCaptureInfo", handle, &on); code != CUDA_SUCCESS) {
    return code;
  }
  std::lock_guard lock(capture_mutex);
  capture* found = on->capturing;
  *status = found == nullptr ? 0 : found->invalid ? 2 : 1;
  if (found == nullptr) return CUDA_SUCCESS;
  auto& ends = found->ends[on];
  if (id != nullptr) *id = found->id;
  if (into != nullptr) *into = &found->into;
  if (needs != nullptr) *needs = ends.data();
  if (count != nullptr) *count = ends.size();
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int* status, uint64_t* id,
                                              CUgraph* into, const CUgraphNode** needs,
                                              const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return cuStreamGetCaptureInfo_v2(handle, status, id, into, needs, count);
}

DRIVER_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  if (mode == nullptr || *mode < 0 || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuStreamBeginCapture_v2>("cuStreamBeginCapture", 10010),
    entry<&cuStreamBeginCaptureToGraph>("cuStreamBeginCaptureToGraph", 12030),
    entry<&cuStreamEndCapture>("cuStreamEndCapture", 10000),
    entry<&cuStreamIsCapturing>("cuStreamIsCapturing", 10000),
    entry<&cuStreamGetCaptureInfo_v2>("cuStreamGetCaptureInfo", 11030),
    entry<&cuStreamGetCaptureInfo_v3>("cuStreamGetCaptureInfo", 12030),
    entry<&cuThreadExchangeStreamCaptureMode>("cuThreadExchangeStreamCaptureMode", 10010),
};
}
