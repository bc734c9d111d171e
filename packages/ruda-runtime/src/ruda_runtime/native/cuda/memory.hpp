// Device memory of the cuda target: blocks of one stream-ordered pool of the driver, which keeps freed
// memory for later requests. The functions behind native/allocator.hpp.
#pragma once

#include <ruda/abi.h>

#include <cstddef>

#include "types.hpp"

namespace ruda::native::cuda {

void* allocate(size_t bytes, ruda_error* error) noexcept;
// False: not the start of a live block.
bool release(void* pointer) noexcept;
// 0: not the start of a live block.
size_t usable_size(const void* pointer) noexcept;
void* hold_block(const void* pointer);
void drop_block(void* block) noexcept;
int32_t record_stream(const void* pointer, int32_t stream, ruda_error* error) noexcept;
void memory_stats(ruda_memory_stats* stats) noexcept;
void reset_peak_memory_stats() noexcept;
void empty_cache() noexcept;
size_t memory_free() noexcept;

// The process ends.
void destroy_pool() noexcept;

}  // namespace ruda::native::cuda
