// Page-locked host memory, which the GPU copies without the host's help. Blocks are kept for reuse: the
// driver takes about a millisecond to lock fresh ones.
#pragma once

#include <ruda/abi.h>

#include <cstddef>
#include <cstdint>

namespace ruda::native::cuda {

void* allocate_pinned(size_t bytes, ruda_error* error) noexcept;
// The block is handed out again when the copies noted for it are done.
void release_pinned(void* pointer) noexcept;

// Whether [pointer, pointer + bytes) lies in a live block.
bool is_pinned(const void* pointer, size_t bytes) noexcept;
// A copy that was just submitted to the stream uses the block that holds `pointer`.
int32_t note_pinned_use(const void* pointer, int32_t stream, ruda_error* error) noexcept;

int64_t pinned_bytes() noexcept;  // locked now, in use or kept
void empty_pinned_cache() noexcept;
void destroy_pinned() noexcept;

}  // namespace ruda::native::cuda
