#include "arguments.hpp"
#include "capture.hpp"
#include "copies.hpp"
#include "entry.hpp"
#include "graphs.hpp"
#include "launch.hpp"
#include "node_parameters.hpp"
#include "reports.hpp"
#include "settings.hpp"

#include <algorithm>
#include <random>

namespace driver_double {

std::shared_ptr<graph_plan> make_plan(const graph& from) {
  auto plan = std::make_shared<graph_plan>();
  std::map<const graph_node*, size_t> places;
  for (const graph_node* each : from.nodes) {
    graph_plan::step step{each, each->work, {}};
    for (const graph_node* need : each->needs) step.needs.push_back(places.at(need));
    std::sort(step.needs.begin(), step.needs.end());
    places[each] = plan->steps.size();
    plan->steps.push_back(std::move(step));
  }
  return plan;
}

CUresult graph_operation::run(stream& on) {
  const auto& steps = plan->steps;
  std::vector<size_t> missing(steps.size()), ready;
  std::vector<std::vector<size_t>> behind(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    missing[i] = steps[i].needs.size();
    for (size_t need : steps[i].needs) behind[need].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  std::mt19937_64 random(seed);
  while (!ready.empty()) {
    size_t pick = ready.size() > 1 ? random() % ready.size() : 0;
    size_t next = ready[pick];
    ready[pick] = ready.back();
    ready.pop_back();
    if (CUresult code = steps[next].work->run(on); code != CUDA_SUCCESS) return code;
    for (size_t each : behind[next]) {
      if (--missing[each] == 0) ready.push_back(each);
    }
  }
  return CUDA_SUCCESS;
}

CUresult check_plan(const char* call, const graph_plan& plan) {
  for (const graph_plan::step& each : plan.steps) {
    CUresult code = CUDA_SUCCESS;
    switch (each.work->kind) {
      case operation::type::kernel: {
        const auto& work = static_cast<const kernel_operation&>(*each.work);
        code = need_function(call, work.what);
        if (code == CUDA_SUCCESS) code = check_values(call, *work.what, work.values.data());
        break;
      }
      case operation::type::copy:
        code = check_copy(moment::submitting, call,
                          static_cast<const copy_operation&>(*each.work).shape);
        break;
      case operation::type::set:
        code = static_cast<const set_operation&>(*each.work).check(moment::submitting);
        break;
      case operation::type::graph:
        code = check_plan(call, *static_cast<const graph_operation&>(*each.work).plan);
        break;
      default: break;
    }
    if (code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

namespace {

CUresult need_exec(const char* call, CUgraphExec handle) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (valid(handle)) return CUDA_SUCCESS;
  return report(CUDA_ERROR_INVALID_VALUE, "[%s] %p is no executable graph, or was destroyed", call,
                static_cast<void*>(handle));
}

// Exchanges the work of one node in later launches.
template <class Parameters>
CUresult set_parameters(const char* call, CUgraphExec exec, CUgraphNode node, operation::type kind,
                        const Parameters& wanted) {
  if (CUresult code = need_exec(call, exec); code != CUDA_SUCCESS) return code;
  std::shared_ptr<operation> work;
  if (CUresult code = work_of(call, wanted, &work); code != CUDA_SUCCESS) return code;
  std::lock_guard lock(exec->mutex);
  auto changed = std::make_shared<graph_plan>(*exec->plan);
  for (graph_plan::step& each : changed->steps) {
    if (each.origin != node || each.work->kind != kind) continue;
    each.work = std::move(work);
    exec->plan = std::move(changed);
    return CUDA_SUCCESS;
  }
  return report(CUDA_ERROR_INVALID_VALUE,
                "[%s] the node is none of this executable graph, or of another type", call);
}

// 0, or CUgraphExecUpdateResult with the node that does not fit.
int difference(const graph_plan& now, const graph_plan& wanted, const graph_node** where) {
  *where = nullptr;
  if (now.steps.size() != wanted.steps.size()) return 2;  // the topology
  for (size_t i = 0; i < now.steps.size(); ++i) {
    *where = wanted.steps[i].origin;
    if (now.steps[i].needs != wanted.steps[i].needs) return 2;
    if (now.steps[i].work->kind != wanted.steps[i].work->kind) return 3;  // a node's type
  }
  *where = nullptr;
  return 0;
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph from, uint64_t flags) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(from)) {
    return report(CUDA_ERROR_INVALID_VALUE, "[cuGraphInstantiate] no graph, or destroyed");
  }
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & 4) != 0) return CUDA_ERROR_NOT_SUPPORTED;  // launches from the device
  *out = new graph_exec(make_plan(*from));
  (*out)->flags = flags;
  ++counters::get().live_graph_execs;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph from,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS* how) {
  CUresult code = cuGraphInstantiateWithFlags(out, from, how->flags);
  how->hErrNode_out = nullptr;
  how->result_out = code == CUDA_SUCCESS ? 0 : 1;
  return code;
}

DRIVER_API CUresult cuGraphExecDestroy(CUgraphExec destroyed) {
  if (CUresult code = need_exec("cuGraphExecDestroy", destroyed); code != CUDA_SUCCESS) return code;
  std::lock_guard lock(destroyed->mutex);
  destroyed->is = handle::kind::dead;
  destroyed->plan.reset();
  --counters::get().live_graph_execs;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphExecGetFlags(CUgraphExec of, uint64_t* flags) {
  if (CUresult code = need_exec("cuGraphExecGetFlags", of); code != CUDA_SUCCESS) return code;
  *flags = of->flags;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphUpload(CUgraphExec of, CUstream handle) {
  stream* on = nullptr;
  if (CUresult code = need_exec("cuGraphUpload", of); code != CUDA_SUCCESS) return code;
  return resolve("cuGraphUpload", handle, &on);
}

DRIVER_API CUresult cuGraphLaunch(CUgraphExec launched, CUstream handle) {
  const char* call = "cuGraphLaunch";
  stream* on = nullptr;
  if (CUresult code = resolve(call, handle, &on); code != CUDA_SUCCESS) return code;
  if (CUresult code = need_exec(call, launched); code != CUDA_SUCCESS) return code;
  std::lock_guard lock(launched->mutex);
  if (CUresult code = check_plan(call, *launched->plan); code != CUDA_SUCCESS) return code;
  static std::atomic<uint64_t> count{0};
  uint64_t seed = settings::get().shuffle ? settings::get().seed + 31 * ++count : 0;
  auto work = std::make_shared<graph_operation>(launched->plan, seed);
  if (on->capturing != nullptr) return submit(call, *on, std::move(work));
  const position last = launched->last;
  if (last.on != nullptr && last.on != on && last.on->completed() < last.number) {
    submit_wait(*on, last);
  }
  CUresult code = submit(call, *on, std::move(work), &launched->last);
  if (code == CUDA_SUCCESS) ++counters::get().graph_launches;
  return code;
}

DRIVER_API CUresult cuGraphExecUpdate_v2(CUgraphExec updated, CUgraph from,
                                         CUgraphExecUpdateResultInfo* result) {
  const char* call = "cuGraphExecUpdate";
  if (CUresult code = need_exec(call, updated); code != CUDA_SUCCESS) return code;
  if (!valid(from)) return report(CUDA_ERROR_INVALID_VALUE, "[%s] no graph, or destroyed", call);
  std::lock_guard lock(updated->mutex);
  auto wanted = make_plan(*from);
  const graph_node* where = nullptr;
  int different = difference(*updated->plan, *wanted, &where);
  if (result != nullptr) *result = {different, const_cast<graph_node*>(where), nullptr};
  if (different != 0) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  // Nodes keep the names that they have in the graph the executable one was made from.
  for (size_t i = 0; i < wanted->steps.size(); ++i) {
    wanted->steps[i].origin = updated->plan->steps[i].origin;
  }
  updated->plan = std::move(wanted);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                      const CUDA_KERNEL_NODE_PARAMS* wanted) {
  return set_parameters("cuGraphExecKernelNodeSetParams", exec, node, operation::type::kernel,
                        *wanted);
}

DRIVER_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_MEMCPY3D* wanted, CUcontext) {
  return set_parameters("cuGraphExecMemcpyNodeSetParams", exec, node, operation::type::copy,
                        *wanted);
}

DRIVER_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_MEMSET_NODE_PARAMS* wanted,
                                                   CUcontext) {
  return set_parameters("cuGraphExecMemsetNodeSetParams", exec, node, operation::type::set,
                        *wanted);
}

namespace {
const entry_table entries{
    entry<&cuGraphInstantiateWithFlags>("cuGraphInstantiateWithFlags", 11040),
    entry<&cuGraphInstantiateWithFlags>("cuGraphInstantiate", 12000),
    entry<&cuGraphInstantiateWithParams>("cuGraphInstantiateWithParams", 12000),
    entry<&cuGraphExecDestroy>("cuGraphExecDestroy", 10000),
    entry<&cuGraphExecGetFlags>("cuGraphExecGetFlags", 12000),
    entry<&cuGraphUpload>("cuGraphUpload", 11010),
    entry<&cuGraphLaunch>("cuGraphLaunch", 10000),
    entry<&cuGraphExecUpdate_v2>("cuGraphExecUpdate", 12000),
    entry<&cuGraphExecKernelNodeSetParams_v2>("cuGraphExecKernelNodeSetParams", 12000),
    entry<&cuGraphExecMemcpyNodeSetParams>("cuGraphExecMemcpyNodeSetParams", 10020),
    entry<&cuGraphExecMemsetNodeSetParams>("cuGraphExecMemsetNodeSetParams", 10020),
};
}
