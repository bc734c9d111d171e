// Graphs: nodes of work with their order, and executable copies of them.
#pragma once

#include "streams.hpp"

#include <map>
#include <thread>

namespace driver_double {

struct graph_node : handle {
  static constexpr kind kind_of = kind::node;
  graph_node(graph& owner, std::shared_ptr<operation> what)
      : handle{kind_of}, in(&owner), work(std::move(what)) {}
  graph* in;
  std::shared_ptr<operation> work;  // never changed in place: executable graphs share it
  std::vector<graph_node*> needs;
};

struct graph : handle {
  static constexpr kind kind_of = kind::graph;
  graph() : handle{kind_of} {}
  std::vector<graph_node*> nodes;  // each behind those it needs
  uint64_t id = 0;

  graph_node* add(std::shared_ptr<operation> work, std::vector<graph_node*> needs);
};

// What an executable graph runs. Launches keep the plan that they began with.
struct graph_plan {
  struct step {
    const graph_node* origin;
    std::shared_ptr<operation> work;
    std::vector<size_t> needs;  // earlier steps
  };
  std::vector<step> steps;
};

std::shared_ptr<graph_plan> make_plan(const graph& from);

struct graph_exec : handle {
  static constexpr kind kind_of = kind::exec;
  explicit graph_exec(std::shared_ptr<const graph_plan> first)
      : handle{kind_of}, plan(std::move(first)) {}
  std::mutex mutex;
  std::shared_ptr<const graph_plan> plan;
  position last;  // of the last launch: launches of one graph do not overlap
  uint64_t flags = 0;
};

// The work of one launch. Steps that do not depend on each other run in random order.
struct graph_operation final : operation {
  graph_operation(std::shared_ptr<const graph_plan> what, uint64_t order)
      : operation(type::graph), plan(std::move(what)), seed(order) {}
  CUresult run(stream& on) override;
  void addresses(const std::function<void(uint64_t)>& each) const override {
    for (const graph_plan::step& step : plan->steps) step.work->addresses(each);
  }
  std::shared_ptr<const graph_plan> plan;
  uint64_t seed;
};

// Is the memory of the steps alive? Each was right when its node was made.
CUresult check_plan(const char* call, const graph_plan& plan);

struct capture {
  capture(graph& target, stream& first, int how)
      : into(target), origin(first), mode(how), thread(std::this_thread::get_id()) {}
  graph& into;
  stream& origin;
  const int mode;  // 0: global, 1: thread local, 2: relaxed
  const std::thread::id thread;
  uint64_t id = 0;
  bool invalid = false;
  std::map<stream*, std::vector<graph_node*>> ends;  // what later work of a stream comes behind
};

}  // namespace driver_double
