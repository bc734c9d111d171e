// The cuda target of this process: one GPU, its primary context and what the GPU can do.
#pragma once

#include <ruda/abi.h>

#include <atomic>
#include <string>

#include "driver.hpp"

namespace ruda::native::cuda {

enum class state : int32_t { off, active, forked, ended };

namespace detail {
extern std::atomic<state> current;
}

// Whether this process's target is cuda, usable or not any more (a forked child, the end of the process).
inline bool chosen() noexcept {
  return detail::current.load(std::memory_order_acquire) != state::off;
}
// Whether the driver may still be called: false in a forked child and when the process ends.
inline bool usable() noexcept {
  return detail::current.load(std::memory_order_acquire) == state::active;
}

struct device_info {
  std::string name;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  int max_threads_per_block = 0;
  int shared_memory_per_block = 0;  // that a kernel may ask for
  int warp_size = 32;
  bool cooperative_launch = false;
  size_t memory_total = 0;
  bool is_double = false;
};

// Chooses the target: opens the driver and makes the context of the first visible GPU. "" or what is
// missing. Calling it again is allowed.
std::string start();

// Opens the driver library only, and says whether it is the driver double.
std::string probe(bool* is_double);

// What every use begins with: the context becomes current in the calling thread. Fails in a forked child.
int32_t enter(const char* operation, ruda_error* error) noexcept;

// Valid after start().
const driver& api() noexcept;
const device_info& device() noexcept;

// The process ends; later calls do nothing.
void end() noexcept;

#define RUDA_CUDA(operation, error, call, ...)                                             \
  do {                                                                                     \
    if (const ::ruda::native::cuda::CUresult ruda_cuda_code_ =                             \
            ::ruda::native::cuda::api().call(__VA_ARGS__);                                 \
        ruda_cuda_code_ != ::ruda::native::cuda::success) [[unlikely]]                     \
      return ::ruda::native::cuda::fail_call(::ruda::native::cuda::api(), operation, #call, \
                                             ruda_cuda_code_, error);                      \
  } while (0)

}  // namespace ruda::native::cuda
