#include "graphs.hpp"

#include "entry.hpp"
#include "reports.hpp"

#include <algorithm>

namespace driver_double {

graph_node* graph::add(std::shared_ptr<operation> work, std::vector<graph_node*> needs) {
  auto* made = new graph_node(*this, std::move(work));
  std::sort(needs.begin(), needs.end());
  needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
  made->needs = std::move(needs);
  nodes.push_back(made);
  return made;
}

namespace {

CUresult need_graph(const char* call, CUgraph handle) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (valid(handle)) return CUDA_SUCCESS;
  return report(CUDA_ERROR_INVALID_VALUE, "[%s] %p is no graph, or a graph that was destroyed",
                call, static_cast<void*>(handle));
}

// The driver's convention: with `out` null only the count is given, else at most *count are.
template <class T>
CUresult give_list(const std::vector<T>& all, T* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out == nullptr) {
    *count = all.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) out[i] = i < all.size() ? all[i] : T{};
  *count = std::min(*count, all.size());
  return CUDA_SUCCESS;
}

bool reaches(const graph_node* from, const graph_node* wanted) {
  if (from == wanted) return true;
  return std::any_of(from->needs.begin(), from->needs.end(),
                     [&](const graph_node* each) { return reaches(each, wanted); });
}

// Keeps the order of graph::nodes when a dependency is added late.
void sort_nodes(graph& of) {
  std::vector<graph_node*> sorted;
  std::vector<graph_node*> left = of.nodes;
  while (!left.empty()) {
    auto ready = std::find_if(left.begin(), left.end(), [&](graph_node* each) {
      return std::all_of(each->needs.begin(), each->needs.end(), [&](graph_node* need) {
        return std::find(sorted.begin(), sorted.end(), need) != sorted.end();
      });
    });
    sorted.push_back(*ready);
    left.erase(ready);
  }
  of.nodes = std::move(sorted);
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = new graph;
  ++counters::get().live_graphs;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphDestroy(CUgraph destroyed) {
  if (CUresult code = need_graph("cuGraphDestroy", destroyed); code != CUDA_SUCCESS) return code;
  for (graph_node* each : destroyed->nodes) {
    each->is = handle::kind::dead;
    each->work.reset();
  }
  destroyed->is = handle::kind::dead;
  --counters::get().live_graphs;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphClone(CUgraph* out, CUgraph original) {
  if (CUresult code = need_graph("cuGraphClone", original); code != CUDA_SUCCESS) return code;
  auto* copy = new graph;
  std::map<graph_node*, graph_node*> copied;
  for (graph_node* each : original->nodes) {
    std::vector<graph_node*> needs;
    for (graph_node* need : each->needs) needs.push_back(copied[need]);
    copied[each] = copy->add(each->work, std::move(needs));
  }
  ++counters::get().live_graphs;
  *out = copy;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphGetNodes(CUgraph of, CUgraphNode* out, size_t* count) {
  if (CUresult code = need_graph("cuGraphGetNodes", of); code != CUDA_SUCCESS) return code;
  return give_list(of->nodes, out, count);
}

DRIVER_API CUresult cuGraphGetRootNodes(CUgraph of, CUgraphNode* out, size_t* count) {
  if (CUresult code = need_graph("cuGraphGetRootNodes", of); code != CUDA_SUCCESS) return code;
  std::vector<graph_node*> roots;
  for (graph_node* each : of->nodes) {
    if (each->needs.empty()) roots.push_back(each);
  }
  return give_list(roots, out, count);
}

DRIVER_API CUresult cuGraphGetEdges(CUgraph of, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  if (CUresult code = need_graph("cuGraphGetEdges", of); code != CUDA_SUCCESS) return code;
  std::vector<graph_node*> first, second;
  for (graph_node* each : of->nodes) {
    for (graph_node* need : each->needs) {
      first.push_back(need);
      second.push_back(each);
    }
  }
  size_t room = *count;
  if (CUresult code = give_list(first, from, &room); code != CUDA_SUCCESS) return code;
  return give_list(second, to, count);
}

DRIVER_API CUresult cuGraphGetEdges_v2(CUgraph of, CUgraphNode* from, CUgraphNode* to,
                                       CUgraphEdgeData* data, size_t* count) {
  size_t room = *count;
  CUresult code = cuGraphGetEdges(of, from, to, count);
  if (code == CUDA_SUCCESS && data != nullptr && from != nullptr) {
    std::fill_n(data, std::min(room, *count), CUgraphEdgeData{});
  }
  return code;
}

DRIVER_API CUresult cuGraphAddDependencies(CUgraph to, const CUgraphNode* from,
                                           const CUgraphNode* behind, size_t count) {
  const char* call = "cuGraphAddDependencies";
  if (CUresult code = need_graph(call, to); code != CUDA_SUCCESS) return code;
  for (size_t i = 0; i < count; ++i) {
    if (!valid(from[i]) || !valid(behind[i]) || from[i]->in != to || behind[i]->in != to) {
      return report(CUDA_ERROR_INVALID_VALUE, "[%s] a node is of another graph, or destroyed",
                    call);
    }
    if (reaches(from[i], behind[i])) {
      return report(CUDA_ERROR_INVALID_VALUE, "[%s] the dependency would form a circle", call);
    }
    auto& needs = behind[i]->needs;
    if (std::find(needs.begin(), needs.end(), from[i]) == needs.end()) needs.push_back(from[i]);
  }
  sort_nodes(*to);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphAddDependencies_v2(CUgraph to, const CUgraphNode* from,
                                              const CUgraphNode* behind, const CUgraphEdgeData*,
                                              size_t count) {
  return cuGraphAddDependencies(to, from, behind, count);
}

DRIVER_API CUresult cuGraphNodeGetDependencies(CUgraphNode of, CUgraphNode* out, size_t* count) {
  if (!valid(of)) return CUDA_ERROR_INVALID_VALUE;
  return give_list(of->needs, out, count);
}

DRIVER_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode of, CUgraphNode* out,
                                                  CUgraphEdgeData* data, size_t* count) {
  size_t room = *count;
  CUresult code = cuGraphNodeGetDependencies(of, out, count);
  if (code == CUDA_SUCCESS && data != nullptr && out != nullptr) {
    std::fill_n(data, std::min(room, *count), CUgraphEdgeData{});
  }
  return code;
}

DRIVER_API CUresult cuGraphNodeGetType(CUgraphNode of, int* type) {
  if (!valid(of)) return CUDA_ERROR_INVALID_VALUE;
  *type = static_cast<int>(of->work->kind);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuGraphDestroyNode(CUgraphNode destroyed) {
  if (!valid(destroyed)) return CUDA_ERROR_INVALID_VALUE;
  for (graph_node* each : destroyed->in->nodes) std::erase(each->needs, destroyed);
  std::erase(destroyed->in->nodes, destroyed);
  destroyed->is = handle::kind::dead;
  destroyed->work.reset();
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuGraphCreate>("cuGraphCreate", 10000),
    entry<&cuGraphDestroy>("cuGraphDestroy", 10000),
    entry<&cuGraphClone>("cuGraphClone", 10000),
    entry<&cuGraphGetNodes>("cuGraphGetNodes", 10000),
    entry<&cuGraphGetRootNodes>("cuGraphGetRootNodes", 10000),
    entry<&cuGraphGetEdges>("cuGraphGetEdges", 10000),
    entry<&cuGraphGetEdges_v2>("cuGraphGetEdges", 12030),
    entry<&cuGraphAddDependencies>("cuGraphAddDependencies", 10000),
    entry<&cuGraphAddDependencies_v2>("cuGraphAddDependencies", 12030),
    entry<&cuGraphNodeGetDependencies>("cuGraphNodeGetDependencies", 10000),
    entry<&cuGraphNodeGetDependencies_v2>("cuGraphNodeGetDependencies", 12030),
    entry<&cuGraphNodeGetType>("cuGraphNodeGetType", 10000),
    entry<&cuGraphDestroyNode>("cuGraphDestroyNode", 10000),
};
}
