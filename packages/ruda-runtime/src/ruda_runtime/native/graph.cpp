#include "graph.hpp"

#include <new>

#include <ruda/entry.hpp>

#include "cuda/graph.hpp"
#include "cuda/streams.hpp"
#include "cuda/target.hpp"
#include "kernels.hpp"
#include "stream_wait.hpp"
#include "streams.hpp"
#include "thread_pool.hpp"

namespace ruda::native {
namespace {

int32_t run_recording(const recording& what, ruda_error* error) noexcept {
  size_t failed = 0;
  ruda_error inner;
  inner.code = RUDA_OK;
  inner.message[0] = 0;
  const int32_t status = run_steps(what.steps.data(), what.steps.size(), &failed, &inner);
  if (status == RUDA_OK) return RUDA_OK;
  return fail(error, status, "[graph] node %zu of %zu: %s", failed, what.steps.size(), inner.message);
}

// All graphs of the process. The lock is taken before a graph's own, and never by a thread that holds
// Python's: closing may need that one.
struct graph_registry {
  std::mutex mutex;
  std::vector<graph*> graphs;
};

graph_registry& the_graphs() {
  static graph_registry* shared = new graph_registry;
  return *shared;
}

struct replay_task : task {
  const recording* what;  // which the graph keeps until the task is done
};

bool same_work(const step& one, const step& two) {
  return one.what == two.what && std::string_view(one.name) == two.name;
}

int32_t check_same_work(const recording& ours, const recording& theirs, ruda_error* error) {
  RUDA_CHECK(ours.steps.size() == theirs.steps.size(), error, RUDA_ERROR_VALUE,
             "[graph] update: got a graph of %zu nodes, wanted %zu; an update changes arguments only, "
             "so capture the same work, or use the other graph itself",
             theirs.steps.size(), ours.steps.size());
  for (size_t i = 0; i < ours.steps.size(); ++i)
    RUDA_CHECK(same_work(ours.steps[i], theirs.steps[i]), error, RUDA_ERROR_VALUE,
               "[graph] update: node %zu of the other graph is %s, wanted %s; an update changes "
               "arguments only, so capture the same work, or use the other graph itself",
               i, theirs.steps[i].name, ours.steps[i].name);
  return RUDA_OK;
}

}  // namespace

graph::graph() {
  const std::lock_guard lock(the_graphs().mutex);
  the_graphs().graphs.push_back(this);
}

graph::~graph() {
  {
    const std::lock_guard lock(the_graphs().mutex);
    std::erase(the_graphs().graphs, this);
  }
  close();
}

void close_graphs() noexcept {
  const std::lock_guard lock(the_graphs().mutex);
  for (graph* each : the_graphs().graphs) each->close();
}

int32_t graph::begin(int32_t id, ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    const std::lock_guard lock(mutex_);
    RUDA_CHECK(status_ == state::fresh, error, RUDA_ERROR_RUNTIME,
               "[graph] capture: this graph was captured already");
    if (cuda::chosen()) RUDA_TRY(cuda::enter("graph", error));
    content_ = std::make_shared<recording>();
    RUDA_TRY(native::begin_capture(id, content_.get(), error));
    captured_ = id;
    if (cuda::chosen()) {
      if (const int32_t status = cuda::begin_capture(id, error); status != RUDA_OK) {
        native::end_capture(id);
        return status;
      }
    }
    status_ = state::capturing;
    return RUDA_OK;
  });
}

int32_t graph::end(ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    const std::lock_guard lock(mutex_);
    RUDA_CHECK(status_ == state::capturing, error, RUDA_ERROR_RUNTIME,
               "[graph] capture: this graph is not being captured");
    RUDA_CHECK(captured_here() == captured_, error, RUDA_ERROR_RUNTIME,
               "[graph] capture: the thread that began the capture of stream %d must end it",
               captured_);
    int32_t status = RUDA_OK;
    if (cuda::chosen()) status = cuda::end_capture(captured_, *content_, error);
    native::end_capture(captured_);
    if (status == RUDA_OK && cuda::chosen())
      status = cuda::instantiate(*content_, &executable_, error);
    status_ = status == RUDA_OK ? state::ready : state::closed;
    if (status != RUDA_OK) content_.reset();
    return status;
  });
}

void graph::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  if (status_ != state::capturing) return;
  if (cuda::chosen()) cuda::abandon_capture(captured_);
  native::end_capture(captured_);
  content_.reset();
  status_ = state::closed;
}

int32_t graph::check_ready(const char* operation, ruda_error* error) const {
  RUDA_CHECK(status_ != state::closed, error, RUDA_ERROR_RUNTIME,
             "[graph] %s: the graph is closed; capture a new one", operation);
  RUDA_CHECK(status_ == state::ready, error, RUDA_ERROR_RUNTIME,
             "[graph] %s: the capture has not ended; leave its `with` block first", operation);
  return RUDA_OK;
}

int32_t graph::replay(int32_t id, ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    RUDA_TRY(check_stream(id, "graph", error));
    if (cuda::chosen()) RUDA_TRY(cuda::enter("graph", error));
    // Before the lock: end() of this very graph holds it.
    RUDA_TRY(refuse_captured(id, "replay", error));
    RUDA_TRY(refuse_captured(-1, "replay", error));
    const std::lock_guard lock(mutex_);
    RUDA_TRY(check_ready("replay", error));
    if (!retired_.empty() && is_idle()) retired_.clear();
    if (cuda::chosen()) return launch(id, error);
    return queues_work() ? queue(id, error) : run_now(id, error);
  });
}

int32_t graph::run_now(int32_t id, ruda_error* error) {
  const int32_t outer = current_stream();
  if (id != outer) enter_stream(id);
  const int32_t status = run_recording(*content_, error);
  if (id != outer) enter_stream(outer);
  return status;
}

int32_t graph::queue(int32_t id, ruda_error* error) {
  if (stream_ >= 0) RUDA_TRY(wait_for_work(id, stream_, number_, error));
  auto added = std::make_unique<replay_task>();
  added->name = "graph";
  added->what = content_.get();
  added->threads = num_threads();
  added->run = [](task& self, ruda_error* failure) {
    return run_recording(*static_cast<replay_task&>(self).what, failure);
  };
  added->destroy = [](task& self) { delete static_cast<replay_task*>(&self); };
  uint64_t number = 0;
  RUDA_TRY(submit(id, added.get(), &number, error));
  added.release();
  stream_ = id;
  number_ = number;
  return RUDA_OK;
}

int32_t graph::launch(int32_t id, ruda_error* error) {
  if (stream_ >= 0 && stream_ != id) RUDA_TRY(cuda::wait_event(id, event_, error));
  RUDA_TRY(cuda::launch_graph(executable_, id, error));
  stream_ = id;
  return cuda::record_event(&event_, false, id, error);
}

int32_t graph::update(graph& other, ruda_error* error) noexcept {
  if (&other == this) {
    const std::lock_guard lock(mutex_);
    return check_ready("update", error);
  }
  return guard("graph", error, [&]() -> int32_t {
    const std::scoped_lock lock(mutex_, other.mutex_);
    RUDA_TRY(check_ready("update", error));
    RUDA_TRY(other.check_ready("update", error));
    RUDA_TRY(check_same_work(*content_, *other.content_, error));
    if (cuda::chosen()) {
      const cuda::outside_capture unsafe_calls_allowed;
      RUDA_TRY(cuda::update_graph(executable_, *other.content_, error));
    }
    if (!is_idle()) retired_.push_back(content_);
    content_ = other.content_;
    return RUDA_OK;
  });
}

int32_t graph::nodes(std::vector<std::string>* names, ruda_error* error) noexcept {
  return guard("graph", error, [&]() -> int32_t {
    const std::lock_guard lock(mutex_);
    RUDA_TRY(check_ready("nodes", error));
    for (const step& each : content_->steps) names->emplace_back(each.name);
    return RUDA_OK;
  });
}

bool graph::is_idle() const {
  if (stream_ < 0) return true;
  if (!cuda::chosen()) return completed_work(stream_) >= number_;
  const cuda::outside_capture unsafe_calls_allowed;
  return cuda::query_event(event_) != 0;
}

// Errors stay where they are: the stream raises them.
void graph::wait() noexcept {
  if (stream_ < 0) return;
  if (!cuda::chosen()) return wait_for_completion(stream_, number_);
  const cuda::outside_capture unsafe_calls_allowed;
  if (cuda::usable()) cuda::synchronize_event(event_, stream_, nullptr);
}

void graph::close() noexcept {
  if (status_ == state::capturing) abandon();
  const std::lock_guard lock(mutex_);
  if (status_ == state::closed) return;
  wait();
  {
    const cuda::outside_capture unsafe_calls_allowed;
    cuda::destroy_executable(executable_);
    cuda::destroy_event(event_);
  }
  executable_ = nullptr;
  event_ = nullptr;
  status_ = state::closed;
  retired_.clear();
  content_.reset();
}

}  // namespace ruda::native
