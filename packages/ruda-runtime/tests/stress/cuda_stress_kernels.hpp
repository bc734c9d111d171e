// The double's built-in kernels as device kernels of the runtime, each with several specialisations.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include <ruda/abi.h>

namespace stress {

// "" or what is wrong.
std::string define_kernels();

int64_t launches();

// On the current stream; `random` chooses how many warps the code is compiled for.
int32_t fill(uint64_t* x, int64_t count, uint64_t value, std::mt19937_64& random, ruda_error* error);
int32_t copy(uint64_t* to, const uint64_t* from, int64_t count, std::mt19937_64& random,
             ruda_error* error);
// x[i] = factor * x[i] + y[i % length]
int32_t add(uint64_t* x, const uint64_t* y, int64_t count, int64_t length, uint64_t factor,
            std::mt19937_64& random, ruda_error* error);

}  // namespace stress
