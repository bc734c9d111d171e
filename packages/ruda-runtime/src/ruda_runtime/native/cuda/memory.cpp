#include "memory.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ruda/entry.hpp>

#include "../allocator_text.hpp"
#include "../capture.hpp"
#include "../environment.hpp"
#include "../kernels.hpp"
#include "../streams.hpp"
#include "graph.hpp"
#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

constexpr unsigned char poison_byte = 0xff;

struct block {
  size_t bytes = 0;
  int32_t stream = 0;
  const char* kernel = nullptr;
  std::vector<int32_t> others;  // streams besides its own that use it
  int32_t graphs = 0;           // that refer to it
  bool released = false;        // by its owner; it is freed with the last graph
};

struct memory_state {
  std::mutex mutex;
  CUmemoryPool pool = nullptr;
  // Frees blocks that several streams used, without holding any of them up, and allocates while the
  // current stream is captured.
  CUstream aside = nullptr;
  std::unordered_map<const void*, block> blocks;
  int64_t allocated = 0;
  int64_t peak_allocated = 0;
  int64_t allocations = 0;
  int64_t out_of_memory = 0;
};

memory_state& state_of_memory() {
  static memory_state* shared = [] {
    auto* made = new memory_state;
    pthread_atfork([] { state_of_memory().mutex.lock(); }, [] { state_of_memory().mutex.unlock(); },
                   [] { state_of_memory().mutex.unlock(); });
    return made;
  }();
  return *shared;
}

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Needs the lock.
int32_t open_pool(memory_state& self, ruda_error* error) {
  if (self.pool != nullptr) return RUDA_OK;
  CUmemPoolProps properties;
  if (api().version >= 12020)  // earlier drivers want 0 there
    properties.max_size = static_cast<size_t>(settings().memory_limit);
  CUmemoryPool pool = nullptr;
  RUDA_CUDA("allocate", error, cuMemPoolCreate, &pool, &properties);
  uint64_t keep = UINT64_MAX;  // a synchronisation does not give memory back; empty_cache() does
  RUDA_CUDA("allocate", error, cuMemPoolSetAttribute, pool, pool_release_threshold, &keep);
  self.pool = pool;
  return RUDA_OK;
}

int64_t pool_bytes(const memory_state& self, int attribute) {
  uint64_t value = 0;
  if (self.pool == nullptr || !usable() ||
      api().cuMemPoolGetAttribute(self.pool, attribute, &value) != success)
    return 0;
  return static_cast<int64_t>(value);
}

int64_t free_bytes(const memory_state& self) {
  const auto available = static_cast<int64_t>(memory_free());
  const int64_t limit = settings().memory_limit;
  if (limit == 0) return available;
  return std::min(available, std::max<int64_t>(0, limit - pool_bytes(self, pool_reserved_current)));
}

// Needs the lock.
int32_t report_out_of_memory(memory_state& self, size_t bytes, ruda_error* error) {
  ++self.out_of_memory;
  std::vector<holder> holders;
  holders.reserve(self.blocks.size());
  for (const auto& [pointer, each] : self.blocks) holders.push_back({each.bytes, each.kernel});
  return fail_out_of_memory({bytes, free_bytes(self), self.allocated,
                             static_cast<int64_t>(self.blocks.size()),
                             pool_bytes(self, pool_reserved_current)},
                            std::move(holders), error);
}

// Needs the lock. error_out_of_memory where the limit or the GPU does not allow it.
CUresult take(memory_state& self, size_t bytes, CUstream stream, CUdeviceptr* address) {
  const int64_t limit = settings().memory_limit;
  if (limit != 0) {
    const auto wanted = static_cast<int64_t>(bytes);
    if (wanted > limit - self.allocated) return error_out_of_memory;
  }
  return api().cuMemAllocFromPoolAsync(address, bytes, self.pool, stream);
}

void wait_for_context() {
  const no_new_captures held;
  if (!captures_live()) api().cuCtxSynchronize();
}

void trim(memory_state& self) {
  if (self.pool != nullptr) api().cuMemPoolTrimTo(self.pool, 0);
}

// Needs the lock. Null when the context is lost.
CUstream stream_aside(memory_state& self) {
  if (self.aside == nullptr && api().cuStreamCreate(&self.aside, stream_non_blocking) != success)
    return nullptr;
  return self.aside;
}

int32_t allocate_block(size_t bytes, void** result, ruda_error* error) {
  const int32_t id = native::current_stream();
  CUstream stream = driver_stream(id, "allocate", error);
  if (stream == nullptr) return error != nullptr ? error->code : RUDA_ERROR_RUNTIME;
  memory_state& self = state_of_memory();
  const bool captured = is_captured(id);
  const outside_capture unsafe_calls_allowed;
  std::unique_lock lock(self.mutex);
  RUDA_TRY(open_pool(self, error));
  // In a captured stream the allocation would be part of the graph, with an address of each replay.
  if (captured) stream = stream_aside(self);
  RUDA_CHECK(stream != nullptr, error, RUDA_ERROR_RUNTIME, "[allocate] no stream could be created");
  if (bytes > size_t{1} << 62) return report_out_of_memory(self, bytes, error);
  CUdeviceptr address = 0;
  CUresult code = take(self, bytes, stream, &address);
  if (code == error_out_of_memory) {
    // Memory that was freed behind work still running counts once that work is done.
    lock.unlock();
    wait_for_context();
    lock.lock();
    trim(self);
    code = take(self, bytes, stream, &address);
  }
  if (code == error_out_of_memory) return report_out_of_memory(self, bytes, error);
  if (code != success)
    return fail_call(api(), "allocate", "cuMemAllocFromPoolAsync", code, error);
  if (settings().poison) api().cuMemsetD8Async(address, poison_byte, bytes, stream);
  if (captured) RUDA_CUDA("allocate", error, cuStreamSynchronize, stream);
  *result = reinterpret_cast<void*>(address);
  self.blocks.insert_or_assign(*result, block{bytes, id, running_kernel(), {}, 0, false});
  self.allocated += static_cast<int64_t>(bytes);
  self.peak_allocated = std::max(self.peak_allocated, self.allocated);
  ++self.allocations;
  return RUDA_OK;
}

// The stream whose work comes after all uses of the block, or null.
CUstream freeing_stream(memory_state& self, const block& freed) {
  const CUstream own = driver_stream(freed.stream, "release", nullptr);
  if (own == nullptr || freed.others.empty()) return own;
  const CUstream aside = stream_aside(self);
  if (aside == nullptr) return nullptr;
  std::vector<int32_t> users = freed.others;
  users.push_back(freed.stream);
  for (const int32_t each : users)
    if (order_foreign_stream(each, aside, nullptr) != RUDA_OK) return nullptr;
  return aside;
}

// Needs the lock. A capture keeps what its streams used: a free would become part of the graph.
bool keep_for_captures(block& freed, void* pointer) {
  if (!captures_live()) return false;
  bool kept = keep_for_capture(freed.stream, pointer);
  for (size_t i = 0; i < freed.others.size() && !kept; ++i)
    kept = keep_for_capture(freed.others[i], pointer);
  if (kept) ++freed.graphs;
  return kept;
}

}  // namespace

void* allocate(size_t bytes, ruda_error* error) noexcept {
  if (bytes == 0) return nullptr;
  void* result = nullptr;
  const int32_t status =
      guard("allocate", error, [&] { return allocate_block(bytes, &result, error); });
  return status == RUDA_OK ? result : nullptr;
}

bool release(void* pointer) noexcept {
  if (!usable()) return true;  // with the context, or in the parent of a fork
  const no_new_captures held;
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  const auto found = self.blocks.find(pointer);
  if (found == self.blocks.end()) return false;
  if (found->second.graphs != 0 || keep_for_captures(found->second, pointer)) [[unlikely]]
    return !std::exchange(found->second.released, true);
  const block freed = std::move(found->second);
  self.blocks.erase(found);
  self.allocated -= static_cast<int64_t>(freed.bytes);
  const CUstream stream = freeing_stream(self, freed);
  if (stream == nullptr) return true;  // the context is lost
  if (settings().poison)
    api().cuMemsetD8Async(address_of(pointer), poison_byte, freed.bytes, stream);
  api().cuMemFreeAsync(address_of(pointer), stream);
  return true;
}

void* hold_block(const void* pointer) {
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  auto found = self.blocks.find(pointer);
  if (found == self.blocks.end()) {
    const auto* address = static_cast<const char*>(pointer);
    found = std::find_if(self.blocks.begin(), self.blocks.end(), [&](const auto& each) {
      const auto* start = static_cast<const char*>(each.first);
      return address > start && address < start + each.second.bytes;
    });
    if (found == self.blocks.end()) return nullptr;
  }
  ++found->second.graphs;
  return const_cast<void*>(found->first);
}

void drop_block(void* pointer) noexcept {
  memory_state& self = state_of_memory();
  std::unique_lock lock(self.mutex);
  const auto found = self.blocks.find(pointer);
  // At the end of the process the blocks go before the graphs.
  if (found == self.blocks.end() || --found->second.graphs != 0) return;
  const bool released = std::exchange(found->second.released, false);
  lock.unlock();
  if (released) release(pointer);
}

size_t usable_size(const void* pointer) noexcept {
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  const auto found = self.blocks.find(pointer);
  return found == self.blocks.end() ? 0 : found->second.bytes;
}

int32_t record_stream(const void* pointer, int32_t stream, ruda_error* error) noexcept {
  RUDA_TRY(enter("record_stream", error));
  return guard("record_stream", error, [&]() -> int32_t {
    memory_state& self = state_of_memory();
    const std::lock_guard lock(self.mutex);
    const auto found = self.blocks.find(pointer);
    if (found == self.blocks.end() || found->second.stream == stream) return RUDA_OK;
    auto& others = found->second.others;
    if (std::find(others.begin(), others.end(), stream) == others.end()) others.push_back(stream);
    return RUDA_OK;
  });
}

void memory_stats(ruda_memory_stats* stats) noexcept {
  enter("memory_stats", nullptr);
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  *stats = {self.allocated,
            pool_bytes(self, pool_reserved_current),
            self.peak_allocated,
            pool_bytes(self, pool_reserved_high),
            static_cast<int64_t>(self.blocks.size()),
            self.allocations,
            self.allocations,
            self.out_of_memory};
}

void reset_peak_memory_stats() noexcept {
  enter("reset_peak_memory_stats", nullptr);
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  self.peak_allocated = self.allocated;
  uint64_t zero = 0;  // the driver's word for "what it is now"
  if (self.pool != nullptr && usable())
    api().cuMemPoolSetAttribute(self.pool, pool_reserved_high, &zero);
}

void empty_cache() noexcept {
  if (enter("empty_cache", nullptr) != RUDA_OK) return;
  wait_for_context();
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  trim(self);
}

size_t memory_free() noexcept {
  size_t free = 0, total = 0;
  if (enter("memory_free", nullptr) == RUDA_OK) api().cuMemGetInfo(&free, &total);
  return free;
}

void destroy_pool() noexcept {
  memory_state& self = state_of_memory();
  const std::lock_guard lock(self.mutex);
  // Tensors in global variables outlive the target; their memory ends with it.
  for (const auto& [pointer, each] : self.blocks)
    if (const CUstream stream = driver_stream(each.stream, "release", nullptr))
      api().cuMemFreeAsync(address_of(pointer), stream);
  self.blocks.clear();
  api().cuCtxSynchronize();
  if (self.aside != nullptr) api().cuStreamDestroy(self.aside);
  if (self.pool != nullptr) api().cuMemPoolDestroy(self.pool);
  self.aside = nullptr;
  self.pool = nullptr;
}

}  // namespace ruda::native::cuda
