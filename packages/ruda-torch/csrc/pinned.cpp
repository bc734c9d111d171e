#include "pinned.h"

#include "cuda/target.h"
#include "runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <map>
#include <mutex>

namespace ruda_torch {

namespace {

constexpr size_t kAlignment = 64;

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    const bool locked = on_cuda();
    void* pointer = locked ? page_locked(nbytes) : ordinary(nbytes);
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[pointer] = {nbytes, locked};
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(nbytes);
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(nbytes);
    ++stats_.num_host_alloc;
    return {pointer, pointer, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* target, const void* source, size_t count) const override {
    default_copy_data(target, source, count);
  }

  bool owns(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(const_cast<void*>(pointer));
    if (after == blocks_.begin()) return false;
    const auto& [start, block] = *std::prev(after);
    return pointer < static_cast<const char*>(start) + block.nbytes;
  }

  // Nothing to note: on the host target a copy is done when its call returns, and ruda-runtime knows
  // which copies use a page-locked block.
  bool record_event(void* pointer, void*, c10::Stream) override { return owns(pointer); }
  void empty_cache() override {}  // ordinary blocks go back at once, page-locked ones to ruda-runtime
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for_each_stat([](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
    stats_.num_host_alloc = 0;
    stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for_each_stat([](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }

 private:
  struct Block {
    size_t nbytes;
    bool locked;  // by the driver
  };

  static void release(void* pointer);

  static void* ordinary(size_t nbytes) {
    const size_t rounded = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
    void* pointer = std::aligned_alloc(kAlignment, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, pointer != nullptr, "[pin_memory] out of memory: got a "
                     "request of ", nbytes, " bytes, which the system refused");
    return pointer;
  }

  static void* page_locked(size_t nbytes) {
    ruda_error error{};
    void* pointer = api()->allocate_pinned(nbytes, &error);
    if (pointer == nullptr) check(error.code == RUDA_OK ? RUDA_ERROR_MEMORY : error.code, error);
    return pointer;
  }

  // What is left to free of a block: none for an unknown one.
  Block forget(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end()) return {0, false};
    const Block block = found->second;
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(block.nbytes);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(block.nbytes);
    ++stats_.num_host_free;
    blocks_.erase(found);
    return block;
  }

  template <class Function>
  void for_each_stat(Function function) {
    function(stats_.active_requests);
    function(stats_.active_bytes);
    function(stats_.allocations);
    function(stats_.allocated_bytes);
  }

  std::mutex mutex_;
  std::map<void*, Block> blocks_;
  at::HostStats stats_;
};

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator();  // tensors outlive static destructors
  return *allocator;
}

void PinnedAllocator::release(void* pointer) {
  if (pointer == nullptr) return;
  if (instance().forget(pointer).locked) {
    api()->release_pinned(pointer);
  } else {
    std::free(pointer);
  }
}

}  // namespace

c10::Allocator* pinned_allocator() { return &instance(); }

bool is_pinned_pointer(const void* pointer) { return instance().owns(pointer); }

void register_pinned_allocator() { at::setHostAllocator(kRuda, &instance()); }

}  // namespace ruda_torch
