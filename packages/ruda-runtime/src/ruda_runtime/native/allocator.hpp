// The caching allocator behind ruda_api: thread-safe, statistics in ruda_memory_stats.
//
// At most 32 KiB: slabs of equal blocks (small_pool). Above: best fit (large_pool). Every block is
// aligned to 64 bytes. With RUDA_POISON=1 a block is filled with 0xff, which is a NaN in every floating
// dtype, when it is handed out and when it is given back.
#pragma once

#include <ruda/abi.h>

#include <cstddef>

namespace ruda::native {

// Registers the fork handlers: a child never inherits a lock that another thread held.
void prepare_allocator();

void* allocate(size_t bytes, ruda_error* error) noexcept;
void release(void* pointer) noexcept;
size_t usable_size(const void* pointer) noexcept;
// For graphs: the live block around a pointer (null: none) stays, even when its owner releases it, until
// drop_block was called as often.
void* hold_block(const void* pointer);
void drop_block(void* block) noexcept;
int32_t record_stream(const void* pointer, int32_t stream, ruda_error* error) noexcept;
void memory_stats(ruda_memory_stats* stats) noexcept;
void reset_peak_memory_stats() noexcept;
void empty_cache() noexcept;

}  // namespace ruda::native
