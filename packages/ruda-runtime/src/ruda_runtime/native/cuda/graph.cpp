#include "graph.hpp"

#include <utility>

#include <ruda/entry.hpp>

#include "../streams.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

int32_t stream_for(int32_t id, CUstream* stream, ruda_error* error) {
  ruda_error failure;
  failure.code = RUDA_ERROR_RUNTIME;
  *stream = driver_stream(id, "graph", &failure);
  if (*stream != nullptr) return RUDA_OK;
  if (error != nullptr) *error = failure;
  return failure.code;
}

CUgraph graph_of(const recording& from) { return static_cast<CUgraph>(from.device_graph); }

}  // namespace

outside_capture::outside_capture() noexcept
    : active_(usable() && captured_here() >= 0), mode_(capture_relaxed) {
  if (active_) api().cuThreadExchangeStreamCaptureMode(&mode_);
}

outside_capture::~outside_capture() {
  if (active_) api().cuThreadExchangeStreamCaptureMode(&mode_);
}

int32_t begin_capture(int32_t id, ruda_error* error) noexcept {
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  RUDA_CUDA("graph", error, cuStreamBeginCapture, stream, capture_thread_local);
  return RUDA_OK;
}

int32_t end_capture(int32_t id, recording& into, ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    CUstream stream = nullptr;
    RUDA_TRY(stream_for(id, &stream, error));
    CUgraph made = nullptr;
    RUDA_CUDA("graph", error, cuStreamEndCapture, stream, &made);
    into.device_graph = made;
    size_t count = 0;
    RUDA_CUDA("graph", error, cuGraphGetNodes, made, nullptr, &count);
    while (into.steps.size() < count) into.steps.push_back({"foreign", nullptr});
    return RUDA_OK;
  });
}

void abandon_capture(int32_t id) noexcept {
  if (!usable()) return;
  CUgraph made = nullptr;
  const CUstream stream = driver_stream(id, "graph", nullptr);
  if (stream == nullptr) return;
  api().cuStreamEndCapture(stream, &made);
  destroy_graph(made);
}

int32_t instantiate(const recording& from, CUgraphExec* made, ruda_error* error) noexcept {
  RUDA_CUDA("graph", error, cuGraphInstantiateWithFlags, made, graph_of(from), 0);
  return RUDA_OK;
}

int32_t launch_graph(CUgraphExec graph, int32_t id, ruda_error* error) noexcept {
  CUstream stream = nullptr;
  RUDA_TRY(stream_for(id, &stream, error));
  if (const CUresult code = api().cuGraphLaunch(graph, stream); code != success)
    return fail_work("graph", "cuGraphLaunch", code, id, error);
  return asynchronous() != 0 ? RUDA_OK : synchronize(id, error);
}

int32_t update_graph(CUgraphExec graph, const recording& from, ruda_error* error) noexcept {
  RUDA_TRY(enter("graph", error));
  CUgraphExecUpdateResultInfo info;
  RUDA_CUDA("graph", error, cuGraphExecUpdate, graph, graph_of(from), &info);
  return RUDA_OK;
}

void destroy_graph(void* graph) noexcept {
  if (graph != nullptr && usable() && enter("graph", nullptr) == RUDA_OK)
    api().cuGraphDestroy(static_cast<CUgraph>(graph));
}

void destroy_executable(CUgraphExec graph) noexcept {
  if (graph != nullptr && usable() && enter("graph", nullptr) == RUDA_OK)
    api().cuGraphExecDestroy(graph);
}

}  // namespace ruda::native::cuda
