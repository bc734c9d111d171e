#include "allocator.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <ruda/entry.hpp>

#include "allocator_text.hpp"
#include "cuda/memory.hpp"
#include "cuda/target.hpp"
#include "deferred.hpp"
#include "environment.hpp"
#include "kernels.hpp"
#include "large_pool.hpp"
#include "mapping.hpp"
#include "small_pool.hpp"
#include "streams.hpp"

namespace ruda::native {
namespace {

constexpr int poison_byte = 0xff;
constexpr size_t reported_holders = 5;

// A live block that graphs refer to.
struct graph_hold {
  int32_t graphs = 0;
  bool released = false;  // by its owner; it goes back with the last graph
};

struct allocator_state {
  std::mutex mutex;
  mapping source;
  small_pool small{source};
  large_pool large{source};
  deferred_blocks deferred;  // used by asynchronous dispatch only
  std::unordered_map<const void*, graph_hold> held;
  int64_t allocated = 0;
  int64_t peak_allocated = 0;
  int64_t count = 0;
  int64_t allocations = 0;
  int64_t out_of_memory = 0;

  void* take(size_t bytes) {
    return bytes <= small_pool::max_bytes ? small.allocate(bytes)
                                          : large.allocate(bytes, running_kernel());
  }
  size_t usable(const void* pointer) const {
    return small.covers(pointer) ? small.usable_size(pointer) : large.usable_size(pointer);
  }
  size_t give_back(void* pointer) {
    return small.covers(pointer) ? small.release(pointer) : large.release(pointer);
  }
  // The bytes that a live block was asked with are `bytes` from now on; returns what they were.
  size_t exchange_request(void* pointer, size_t bytes) {
    return small.covers(pointer) ? small.exchange_request(pointer, bytes)
                                 : large.exchange_request(pointer, bytes, running_kernel());
  }

  // Blocks whose queued work is done go back to the pools.
  void collect() {
    deferred.collect([this](void* block) {
      if (settings().poison) std::memset(block, poison_byte, usable(block));
      give_back(block);
    });
  }
  // A block that earlier work of the caller's stream still uses. Poisoning keeps all blocks until they
  // are free, so that a test sees what it would hide.
  void* take_deferred(size_t bytes) {
    collect();
    if (settings().poison) return nullptr;
    const size_t wanted = bytes <= small_pool::max_bytes ? small_pool::usable_for(bytes)
                                                         : large_pool::rounded(bytes);
    void* block = deferred.take(wanted);
    if (block != nullptr) exchange_request(block, bytes);
    return block;
  }
  // Asynchronous dispatch: the block goes back, or waits for the work that may use it. Returns the
  // bytes it was asked with, or 0 when it is no live block.
  size_t release_queued(void* pointer) {
    collect();
    const size_t bytes = usable(pointer);
    if (bytes == 0 || deferred.keeps(pointer)) return 0;
    if (deferred.keep(pointer, bytes)) return exchange_request(pointer, 1);
    if (settings().poison) std::memset(pointer, poison_byte, bytes);
    return give_back(pointer);
  }
  // Whether a graph keeps the block that its owner releases.
  bool keep_for_graphs(const void* pointer) {
    const auto found = held.find(pointer);
    return found != held.end() && !std::exchange(found->second.released, true);
  }
  void trim() {
    small.trim();
    large.trim();
  }
};

// Never destroyed: blocks may be released while the process shuts down.
allocator_state& state() {
  static allocator_state* shared = new allocator_state;
  return *shared;
}

// Needs the lock.
int32_t report_out_of_memory(allocator_state& shared, size_t bytes, ruda_error* error) {
  ++shared.out_of_memory;
  return fail_out_of_memory({bytes, shared.source.free_bytes(), shared.allocated, shared.count,
                             shared.source.stats.reserved},
                            shared.large.largest(reported_holders), error);
}

}  // namespace

void prepare_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    state();
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                   [] { state().mutex.unlock(); });
  });
}

void* allocate(size_t bytes, ruda_error* error) noexcept {
  if (bytes == 0) return nullptr;
  if (cuda::chosen()) return cuda::allocate(bytes, error);
  void* result = nullptr;
  size_t usable = 0;
  const int32_t status = guard("allocate", error, [&]() -> int32_t {
    allocator_state& shared = state();
    const bool queued = asynchronous() != 0;
    std::unique_lock lock(shared.mutex);
    if (bytes > size_t{1} << 62) return report_out_of_memory(shared, bytes, error);
    if (queued) [[unlikely]] result = shared.take_deferred(bytes);
    if (result == nullptr) result = shared.take(bytes);
    if (result == nullptr) {
      shared.trim();
      result = shared.take(bytes);
    }
    if (result == nullptr && queued && !shared.deferred.empty() && running_kernel() == nullptr) {
      // Not in a kernel, whose own stream would wait for it.
      lock.unlock();
      wait_for_all();
      lock.lock();
      shared.collect();
      shared.trim();
      result = shared.take(bytes);
    }
    if (result == nullptr) return report_out_of_memory(shared, bytes, error);
    if (queued) [[unlikely]] shared.deferred.note_allocation(result);
    shared.allocated += static_cast<int64_t>(bytes);
    shared.peak_allocated = std::max(shared.peak_allocated, shared.allocated);
    ++shared.count;
    ++shared.allocations;
    if (settings().poison) usable = shared.usable(result);
    return RUDA_OK;
  });
  if (status != RUDA_OK) return nullptr;
  if (usable != 0) std::memset(result, poison_byte, usable);
  return result;
}

void release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  if (cuda::chosen() && cuda::release(pointer)) return;
  allocator_state& shared = state();
  const bool queued = asynchronous() != 0;
  const std::lock_guard lock(shared.mutex);
  if (!shared.held.empty() && shared.keep_for_graphs(pointer)) [[unlikely]] return;
  if (settings().poison && !queued) std::memset(pointer, poison_byte, shared.usable(pointer));
  const size_t bytes = queued ? shared.release_queued(pointer) : shared.give_back(pointer);
  if (bytes == 0) {
    // A second release or a foreign pointer: going on would hand one block to two owners.
    std::fprintf(stderr, "ruda_runtime: release(%p) is not the start of a live block\n", pointer);
    std::abort();
  }
  shared.allocated -= static_cast<int64_t>(bytes);
  --shared.count;
}

size_t usable_size(const void* pointer) noexcept {
  if (pointer == nullptr) return 0;
  if (cuda::chosen())
    if (const size_t bytes = cuda::usable_size(pointer)) return bytes;
  allocator_state& shared = state();
  const std::lock_guard lock(shared.mutex);
  return shared.usable(pointer);
}

void* hold_block(const void* pointer) {
  if (cuda::chosen()) return cuda::hold_block(pointer);
  allocator_state& shared = state();
  const std::lock_guard lock(shared.mutex);
  void* block = shared.small.covers(pointer) ? shared.small.block_around(pointer)
                                             : shared.large.block_around(pointer);
  if (block != nullptr) ++shared.held[block].graphs;
  return block;
}

void drop_block(void* block) noexcept {
  if (cuda::chosen()) return cuda::drop_block(block);
  allocator_state& shared = state();
  std::unique_lock lock(shared.mutex);
  const auto found = shared.held.find(block);
  if (--found->second.graphs != 0) return;
  const bool released = found->second.released;
  shared.held.erase(found);
  lock.unlock();
  if (released) release(block);
}

int32_t record_stream(const void* pointer, int32_t stream, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(stream, "record_stream", error));
  if (cuda::chosen()) return cuda::record_stream(pointer, stream, error);
  if (asynchronous() == 0) return RUDA_OK;
  return guard("record_stream", error, [&]() -> int32_t {
    allocator_state& shared = state();
    const std::lock_guard lock(shared.mutex);
    if (shared.usable(pointer) != 0)
      shared.deferred.note_use(const_cast<void*>(pointer), stream);
    return RUDA_OK;
  });
}

void memory_stats(ruda_memory_stats* stats) noexcept {
  if (cuda::chosen()) return cuda::memory_stats(stats);
  allocator_state& shared = state();
  const std::lock_guard lock(shared.mutex);
  *stats = {shared.allocated,
            shared.source.stats.reserved,
            shared.peak_allocated,
            shared.source.stats.peak_reserved,
            shared.count,
            shared.allocations,
            shared.source.stats.calls,
            shared.out_of_memory};
}

void reset_peak_memory_stats() noexcept {
  if (cuda::chosen()) return cuda::reset_peak_memory_stats();
  allocator_state& shared = state();
  const std::lock_guard lock(shared.mutex);
  shared.peak_allocated = shared.allocated;
  shared.source.stats.peak_reserved = shared.source.stats.reserved;
}

void empty_cache() noexcept {
  if (cuda::chosen()) return cuda::empty_cache();
  allocator_state& shared = state();
  const std::lock_guard lock(shared.mutex);
  if (asynchronous() != 0) shared.collect();
  shared.trim();
}

}  // namespace ruda::native
