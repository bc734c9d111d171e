// Deep copies of argument structs: what a queued launch needs after the caller's stack has gone.
#pragma once

#include <ruda/abi.h>

#include <cstddef>

namespace ruda::native {

// The bytes of a copy of `args`, aligned to 8. `error` names `kernel` when a view or a list cannot be
// right (a rank out of range, a negative length). `waits` becomes true when the kernel writes a result
// outside the pool's memory, which the caller reads when the launch returns.
int32_t measure_arguments(const ruda_layout& layout, const void* args, const char* kernel,
                          size_t* bytes, bool* waits, ruda_error* error) noexcept;

// Copies into `memory`, which has the measured size, and returns the copied struct.
const void* copy_arguments(const ruda_layout& layout, const void* args, void* memory) noexcept;

}  // namespace ruda::native
