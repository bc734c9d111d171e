/* Checks that the NF4 entries share. */
#ifndef RUDA_BLAS_NF4_CHECKS_HPP
#define RUDA_BLAS_NF4_CHECKS_HPP

#include "../native/entries.hpp"
#include "host.hpp"

namespace ruda {

/* A dense weight [out, in] of a type that can be quantised. */
int32_t check_weight(const ruda_view* weight, const char* operation, ruda_error* error);

int32_t check_block_size(int64_t block_size, const char* operation, ruda_error* error);

/* packed uint8[ceil(rows * cols / 2)] and scales float32[blocks] in any contiguous shape. */
int32_t check_payload(const ruda_view* packed, const ruda_view* scales, int64_t rows, int64_t cols,
                      int64_t block_size, const char* operation, ruda_error* error);

/* The above, with the codebook; fills `weight`. */
int32_t check_quantized(const ruda_view* packed, const ruda_view* scales, const ruda_view* codebook,
                        int64_t rows, int64_t cols, int64_t block_size, const char* operation,
                        blas::nf4_weight* weight, ruda_error* error);

/* A value, at this flat index of a weight with so many columns, that no scale can be taken from. */
int32_t fail_nonfinite(float value, int64_t at, int64_t cols, const char* operation,
                       ruda_error* error);

}  // namespace ruda

#endif
