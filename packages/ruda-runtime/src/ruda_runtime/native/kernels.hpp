// The registry of host kernels and their launch.
#pragma once

#include <ruda/abi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ruda::native {

struct step;

struct kernel_info {
  std::string name;
  std::string package;
  uint64_t layout;
  int64_t launches;
};

int32_t register_kernel(const ruda_kernel* kernel, ruda_error* error) noexcept;
const ruda_kernel* find_kernel(const char* name) noexcept;
int32_t launch(const ruda_kernel* kernel, const void* args, ruda_stream stream,
               ruda_error* error) noexcept;
// Runs captured work in order up to the first error, whose step it notes in `failed`.
int32_t run_steps(const step* steps, size_t count, size_t* failed, ruda_error* error) noexcept;
int64_t launch_count() noexcept;

// All kernels in the order of their names.
std::vector<kernel_info> list_kernels();

// The name of the kernel that runs in this thread, or null: the allocator notes it as the holder of
// what the kernel allocates.
const char* running_kernel() noexcept;

}  // namespace ruda::native
