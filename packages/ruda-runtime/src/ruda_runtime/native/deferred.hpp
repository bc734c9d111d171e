// Asynchronous dispatch: blocks that were released while queued work may still use them. Not
// thread-safe: the allocator's lock protects it.
//
// A block belongs to the stream that was current where it was allocated; record_stream adds others. What
// a kernel allocates while it runs is its own and never waits. A released block is kept until the work
// that those streams had then is done. Before that it can serve the same stream again, whose later work
// finds the earlier done, but only for the thread that released it: host code of another thread may
// have waited for the stream before that work was submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace ruda::native {

class deferred_blocks {
 public:
  // A block that was just handed out to the calling thread.
  void note_allocation(void* block);
  // False when the block is not one that note_allocation saw (or the stream's own).
  void note_use(void* block, int32_t stream);

  // On its release: whether queued work may use it. If so it is kept here.
  bool keep(void* block, size_t usable_bytes);
  bool keeps(const void* block) const { return kept_.count(block) != 0; }
  bool empty() const { return kept_.empty(); }

  // A kept block of just that size which the calling thread may use for work of its current stream, or
  // null.
  void* take(size_t usable_bytes);

  // Calls `release` for the kept blocks whose work is done.
  void collect(const std::function<void(void*)>& release);

 private:
  static constexpr int32_t scratch = -1;

  struct owner {
    int32_t stream;
    std::vector<int32_t> others;
  };
  struct point {
    int32_t stream;
    uint64_t number;
  };
  struct entry {
    void* block = nullptr;  // null: it was taken again
    size_t bytes = 0;
    std::vector<point> until;
    const void* thread = nullptr;  // that released it
    size_t key = 0;                // 0: not to be taken
  };

  static size_t key_of(size_t bytes, int32_t stream);
  void forget_key(entry& each);
  bool is_done(const entry& each) const;

  std::unordered_map<const void*, owner> owners_;  // all but plain blocks of stream 0
  std::unordered_map<int32_t, std::deque<std::unique_ptr<entry>>> by_stream_;  // in order of release
  std::vector<std::unique_ptr<entry>> shared_;  // used by several streams
  std::unordered_map<size_t, std::vector<entry*>> by_key_;
  std::unordered_map<const void*, entry*> kept_;
};

}  // namespace ruda::native
