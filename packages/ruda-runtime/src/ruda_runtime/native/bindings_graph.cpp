// Graphs as a Python class; ruda_runtime.graphs wraps it.

#include <pybind11/stl.h>

#include <memory>

#include <ruda/python.hpp>

#include "bindings.hpp"
#include "graph.hpp"

namespace ruda::native {
namespace {

namespace py = pybind11;

template <class Call>
void checked(Call&& call) {
  ruda_error error{};
  int32_t status;
  {
    const py::gil_scoped_release unlocked;  // replays in flight may need the lock
    status = call(&error);
  }
  python::check(status, error);
}

class py_graph {
 public:
  py_graph() {
    const py::gil_scoped_release unlocked;
    graph_ = std::make_unique<graph>();
  }
  ~py_graph() {
    const py::gil_scoped_release unlocked;
    graph_.reset();
  }
  void begin(int32_t stream) {
    checked([&](ruda_error* error) { return graph_->begin(stream, error); });
  }
  void end() {
    checked([&](ruda_error* error) { return graph_->end(error); });
  }
  void abandon() {
    const py::gil_scoped_release unlocked;
    graph_->abandon();
  }
  void replay(int32_t stream) {
    checked([&](ruda_error* error) { return graph_->replay(stream, error); });
  }
  void update(py_graph& other) {
    checked([&](ruda_error* error) { return graph_->update(*other.graph_, error); });
  }
  std::vector<std::string> nodes() {
    std::vector<std::string> names;
    checked([&](ruda_error* error) { return graph_->nodes(&names, error); });
    return names;
  }
  void close() {
    const py::gil_scoped_release unlocked;
    graph_->close();
  }
  bool closed() const { return graph_->closed(); }

 private:
  std::unique_ptr<graph> graph_;
};

}  // namespace

void bind_graph(py::module_& module) {
  py::class_<py_graph>(module, "Graph")
      .def(py::init<>())
      .def("begin", &py_graph::begin)
      .def("end", &py_graph::end)
      .def("abandon", &py_graph::abandon)
      .def("replay", &py_graph::replay)
      .def("update", &py_graph::update)
      .def("nodes", &py_graph::nodes)
      .def("close", &py_graph::close)
      .def_property_readonly("closed", &py_graph::closed);
}

}  // namespace ruda::native
