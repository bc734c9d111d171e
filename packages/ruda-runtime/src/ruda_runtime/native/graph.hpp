// A captured piece of work that can be replayed: on the host target a list that one call runs, or one task
// of a stream's queue; on a GPU a CUDA graph.
#pragma once

#include <ruda/abi.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capture.hpp"
#include "cuda/types.hpp"

namespace ruda::native {

// Threads may share a graph. Its mutex is held while it waits for its replays and, in synchronous
// dispatch, while it runs one.
class graph {
 public:
  graph();
  graph(const graph&) = delete;
  ~graph();

  // The calling thread captures stream `id` until end(), which it must call itself, or abandon().
  int32_t begin(int32_t id, ruda_error* error) noexcept;
  int32_t end(ruda_error* error) noexcept;
  void abandon() noexcept;

  // Replays of one graph do not overlap, whichever streams they are on.
  int32_t replay(int32_t id, ruda_error* error) noexcept;
  // The arguments of `other`, which must be the same work, from the next replay on.
  int32_t update(graph& other, ruda_error* error) noexcept;
  int32_t nodes(std::vector<std::string>* names, ruda_error* error) noexcept;

  // Waits for replays in flight and lets go of the memory.
  void close() noexcept;
  bool closed() const noexcept { return status_.load() == state::closed; }

 private:
  enum class state { fresh, capturing, ready, closed };

  int32_t check_ready(const char* operation, ruda_error* error) const;
  int32_t run_now(int32_t id, ruda_error* error);
  int32_t queue(int32_t id, ruda_error* error);
  int32_t launch(int32_t id, ruda_error* error);
  bool is_idle() const;
  void wait() noexcept;

  std::mutex mutex_;
  std::atomic<state> status_{state::fresh};
  int32_t captured_ = -1;
  std::shared_ptr<recording> content_;
  std::vector<std::shared_ptr<recording>> retired_;  // by update(); replays in flight may use them

  // The last replay.
  int32_t stream_ = -1;
  uint64_t number_ = 0;
  cuda::CUevent event_ = nullptr;
  cuda::CUgraphExec executable_ = nullptr;
};

// The process ends: closes what is still open.
void close_graphs() noexcept;

}  // namespace ruda::native
