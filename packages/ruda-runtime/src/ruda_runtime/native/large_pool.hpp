// Blocks above 32 KiB: best fit with splitting and merging inside segments, in three tiers so that
// short-lived middle-sized blocks do not cut up the largest segments. A freed block first waits in a
// list of blocks of exactly its size, which is where the same request of the next training step finds
// it; the waiting blocks are merged only when a request finds nothing. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "allocator_text.hpp"
#include "mapping.hpp"
#include "pointer_map.hpp"

namespace ruda::native {

class large_pool {
 public:
  explicit large_pool(mapping& source) : source_(source) {}

  void* allocate(size_t bytes, const char* kernel);
  size_t usable_size(const void* pointer) const;
  // The live block around a pointer, or null; looks through all blocks.
  void* block_around(const void* pointer) const;
  // A live block serves another request of its size; returns the bytes it was asked with before.
  size_t exchange_request(void* pointer, size_t bytes, const char* kernel);
  // Gives back a live block and returns the bytes it was asked with, or 0 if it is not one.
  size_t release(void* pointer);
  // Returns segments without live blocks to the system.
  void trim() { trim_above(0); }

  // The `count` largest live blocks, largest first.
  std::vector<holder> largest(size_t count) const;

  // Steps of a sixteenth of the power of two below, at least a page and at most a huge page.
  static size_t rounded(size_t bytes);

 private:
  static constexpr int tier_count = 3;
  enum class state : uint8_t { live, waiting, free };

  struct block {
    char* base = nullptr;
    size_t bytes = 0;
    size_t requested = 0;
    const char* kernel = nullptr;
    block* previous = nullptr;  // neighbours in the segment
    block* next = nullptr;
    int tier = 0;
    state status = state::live;
  };

  struct by_size {
    using is_transparent = void;
    bool operator()(const block* a, const block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->base < b->base;
    }
    bool operator()(const block* a, size_t bytes) const { return a->bytes < bytes; }
    bool operator()(size_t bytes, const block* a) const { return bytes < a->bytes; }
  };

  static int tier_of(size_t bytes);
  void* hand_out(block& chosen, size_t requested, const char* kernel);
  block* take_waiting(size_t bytes);
  block* take_free(size_t bytes);
  block* map_segment(size_t bytes, size_t segment_bytes);
  void merge_waiting();
  void merge(block* freed);
  void trim_above(size_t keep_bytes);
  void bound_cache(size_t bytes);

  mapping& source_;
  pointer_map<block> live_;
  std::array<std::set<block*, by_size>, tier_count> free_;
  std::unordered_map<size_t, std::vector<block*>> waiting_;
  size_t waiting_count_ = 0;
  size_t live_bytes_ = 0;
  size_t peak_live_bytes_ = 0;
};

}  // namespace ruda::native
