// What the device has done since the process started; `ruda_torch.execution_stats()` shows it.
#pragma once

#include <atomic>
#include <cstdint>

namespace ruda_torch {

struct Counters {
  std::atomic<int64_t> transfers_to_device{0};
  std::atomic<int64_t> transfers_to_host{0};
  std::atomic<int64_t> bytes_to_device{0};
  std::atomic<int64_t> bytes_to_host{0};
  // Calls of ATen's own CPU kernels on ruda memory: the boxed kernel counts one each.
  std::atomic<int64_t> library_calls{0};
};

Counters& counters();

inline void count(std::atomic<int64_t>& counter, int64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace ruda_torch
