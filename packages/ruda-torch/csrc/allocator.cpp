#include "allocator.h"

#include "cuda/target.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

namespace ruda_torch {

namespace {

const c10::Device kDevice(kRuda, 0);

// What the pool does not keep: sums since the process started, and the blocks that tensors hold.
std::atomic<int64_t> g_bytes{0};
std::atomic<int64_t> g_blocks{0};
std::atomic<int64_t> g_live_blocks{0};
std::atomic<int64_t> g_peak_live_blocks{0};

void count_block(size_t nbytes) {
  g_bytes.fetch_add(static_cast<int64_t>(nbytes), std::memory_order_relaxed);
  g_blocks.fetch_add(1, std::memory_order_relaxed);
  const int64_t live = g_live_blocks.fetch_add(1, std::memory_order_relaxed) + 1;
  int64_t peak = g_peak_live_blocks.load(std::memory_order_relaxed);
  while (live > peak && !g_peak_live_blocks.compare_exchange_weak(peak, live)) {
  }
}

// Tells the profiler of a block taken (sign 1) or given back (-1), with the size of the block: the
// pool does not tell what was asked for when a block comes back.
void report(void* pointer, int64_t sign) {
  if (!c10::memoryProfilingEnabled()) return;
  ruda_memory_stats stats;
  api()->memory_stats(&stats);
  const auto nbytes = static_cast<int64_t>(api()->usable_size(pointer));
  c10::reportMemoryUsageToProfiler(pointer, sign * nbytes, stats.allocated, stats.reserved,
                                   kDevice);
}

std::function<std::pair<size_t, size_t>()> g_memory_info;

// From one block to another.
void copy_in_pool(void* target, const void* source, size_t nbytes) {
  if (nbytes == 0) return;
  if (on_cuda()) {
    ruda_error error{};
    check(api()->copy_on_device(target, source, nbytes, api()->current_stream(), &error), error);
    return;
  }
  wait_for_current_stream();
  std::memcpy(target, source, nbytes);
}

class RudaAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* pointer = pool_allocate(nbytes);
    return {pointer, pointer, &pool_release, kDevice};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &pool_release; }

  void copy_data(void* target, const void* source, size_t count) const override {
    copy_in_pool(target, source, count);
  }

  bool initialized() override { return is_initialized(); }

  void emptyCache(c10::MempoolId_t pool = {0, 0}) override {
    TORCH_CHECK_NOT_IMPLEMENTED(pool == c10::MempoolId_t(0, 0),
                                "[empty_cache] private memory pools do not exist on ruda");
    api()->empty_cache();
  }

  // Queued work of `stream` may use the block: once freed it serves others after that work.
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    TORCH_CHECK_VALUE(stream.device_type() == kRuda, "[record_stream] stream: got one of ",
                      stream.device(), ", wanted one of ruda");
    TORCH_CHECK_VALUE(!pointer || pointer.device().type() == kRuda,
                      "[record_stream] memory: got ", pointer.device(), ", wanted ruda");
    ruda_error error{};
    check(api()->record_stream(pointer.get_context(), static_cast<int32_t>(stream.id()), &error),
          error);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_index(device);
    ruda_memory_stats now;
    api()->memory_stats(&now);
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto fill = [&](c10::CachingAllocator::StatArray& stat, int64_t current, int64_t peak,
                    int64_t sum, int64_t before) {
      stat[all].current = current;
      stat[all].peak = std::max(current, peak);
      stat[all].allocated = sum;
      stat[all].freed = std::max<int64_t>(0, sum - (current - before));
    };
    const int64_t bytes = g_bytes.load() - base_.bytes;
    const int64_t blocks = g_blocks.load() - base_.blocks;
    const int64_t live = g_live_blocks.load();
    const int64_t segments = now.system_allocations - base_.system_allocations;
    for (auto* stat : {&stats.allocated_bytes, &stats.requested_bytes, &stats.active_bytes}) {
      fill(*stat, now.allocated, now.peak_allocated, bytes, base_.allocated);
    }
    for (auto* stat : {&stats.allocation, &stats.active}) {
      fill(*stat, live, g_peak_live_blocks.load(), blocks, base_.live_blocks);
    }
    stats.reserved_bytes[all].current = now.reserved;
    stats.reserved_bytes[all].peak = std::max(now.reserved, now.peak_reserved);
    stats.num_device_alloc = segments;
    stats.num_ooms = now.out_of_memory - base_.out_of_memory;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check_index(device);
    ruda_memory_stats now;
    api()->memory_stats(&now);
    base_ = {g_bytes.load(),         g_blocks.load(),   now.allocated,
             g_live_blocks.load(), now.system_allocations, now.out_of_memory};
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    check_index(device);
    api()->reset_peak_memory_stats();
    g_peak_live_blocks.store(g_live_blocks.load());
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    check_index(device);
    return g_memory_info();
  }

 private:
  static void check_index(c10::DeviceIndex device) {
    TORCH_CHECK_VALUE(device == 0 || device == -1, "[ruda] device index: got ",
                      static_cast<int>(device), ", wanted 0 (there is one device)");
  }

  // The numbers at the last reset.
  struct {
    int64_t bytes = 0;
    int64_t blocks = 0;
    int64_t allocated = 0;
    int64_t live_blocks = 0;
    int64_t system_allocations = 0;
    int64_t out_of_memory = 0;
  } base_;
};

}  // namespace

void on_memory_info(std::function<std::pair<size_t, size_t>()> query) {
  g_memory_info = std::move(query);
}

c10::DeviceAllocator* ruda_allocator() {
  static auto* instance = new RudaAllocator();  // storages outlive static destructors
  return instance;
}

void* pool_allocate(size_t nbytes) {
  ensure_usable();
  if (nbytes == 0) return nullptr;
  ruda_error error;
  error.code = RUDA_OK;
  error.message[0] = '\0';
  void* pointer = api()->allocate(nbytes, &error);
  if (pointer == nullptr) {
    ruda_memory_stats stats;
    api()->memory_stats(&stats);
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(nbytes), stats.allocated,
                                     stats.reserved, kDevice);
    check(error.code == RUDA_OK ? RUDA_ERROR_MEMORY : error.code, error);
  }
  count_block(nbytes);
  report(pointer, 1);
  return pointer;
}

void pool_release(void* pointer) {
  if (pointer == nullptr) return;
  report(pointer, -1);
  g_live_blocks.fetch_sub(1, std::memory_order_relaxed);
  api()->release(pointer);
}

bool pool_owns(const void* pointer) {
  return pointer != nullptr && api()->usable_size(pointer) != 0;
}

c10::Storage make_storage(size_t nbytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, ruda_allocator(), true);
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "[resize_] the storage is not resizable");
  c10::DataPtr memory = ruda_allocator()->allocate(nbytes);
  const size_t kept = std::min(nbytes, storage.nbytes());
  copy_in_pool(memory.mutable_get(), storage.data(), kept);
  impl->set_data_ptr_noswap(std::move(memory));
  impl->set_nbytes(nbytes);
}

}  // namespace ruda_torch
