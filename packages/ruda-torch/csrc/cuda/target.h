// Which target this process has: ruda tensors lie in the memory of a GPU, or of the host.
#pragma once

#include <atomic>

namespace ruda_torch {

namespace detail {
extern std::atomic<bool> g_on_cuda;
}

// True once the device was used in this process and its target is cuda. Every tensor of ruda was
// allocated after that.
inline bool on_cuda() { return detail::g_on_cuda.load(std::memory_order_relaxed); }

}  // namespace ruda_torch
