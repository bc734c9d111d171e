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
  std::shared_ptr<operation> work;
  std::vector<graph_node*> needs;
};

struct graph : handle {
  static constexpr kind kind_of = kind::graph;
  graph() : handle{kind_of} {}
  std::vector<graph_node*> nodes;  // each behind those it needs
  uint64_t id = 0;

  graph_node* add(std::shared_ptr<operation> work, std::vector<graph_node*> needs);
};

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
