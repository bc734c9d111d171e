#include "capture.hpp"
#include "entry.hpp"
#include "graphs.hpp"
#include "reports.hpp"

#include <set>

using namespace driver_double;

namespace {

// Is every last node of the other streams before one of the origin's?
bool joined(capture& ended) {
  std::set<graph_node*> reached;
  std::vector<graph_node*> open = ended.ends[&ended.origin];
  while (!open.empty()) {
    graph_node* each = open.back();
    open.pop_back();
    if (reached.insert(each).second)
      open.insert(open.end(), each->needs.begin(), each->needs.end());
  }
  for (auto& [each, nodes] : ended.ends) {
    for (graph_node* node : nodes) {
      if (!reached.contains(node)) return false;
    }
  }
  return true;
}

}  // namespace

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
  begun->ends[on].assign(needs, needs + count);
  begin_capture(*begun);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  auto* into = new graph;
  CUresult code = cuStreamBeginCaptureToGraph(handle, into, nullptr, nullptr, 0, mode);
  if (code != CUDA_SUCCESS) {
    into->is = handle::kind::dead;
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
  end_capture(*ended);
  graph& made = ended->into;
  delete ended;
  if (code == CUDA_SUCCESS) {
    if (out != nullptr) *out = &made;
  } else {
    made.is = handle::kind::dead;
    --counters::get().live_graphs;
  }
  return code;
}

DRIVER_API CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamIsCapturing", handle, &on); code != CUDA_SUCCESS)
    return code;
  std::lock_guard lock(capture_mutex);
  const capture* found = on->capturing;
  *status = found == nullptr ? 0 : found->invalid ? 2 : 1;
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
  std::swap(*mode, thread_capture_mode);
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
