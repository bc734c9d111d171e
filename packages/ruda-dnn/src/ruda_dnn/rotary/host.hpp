/* What the rotary entry asks of the host arithmetic. Features are adjacent. */
#ifndef RUDA_DNN_ROTARY_HOST_HPP
#define RUDA_DNN_ROTARY_HOST_HPP

#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

struct rotary_tokens {
  const void* x;             // [B, T, H, D]
  const void* cos;           // [B or 1, T, R], contiguous
  const void* sin;
  void* y;                   // [B, T, H, D], contiguous
  int64_t strides[3];        // of x's B, T and H, in elements
  int64_t table_batch;       // elements between two batches of cos and sin; 0 for a single one
  int64_t length;            // T
  int64_t heads;             // H
  int64_t features;          // D
  int64_t rotated;           // R
  int32_t dtype;             // of x and y
  int32_t table_dtype;       // of cos and sin
  bool transposed;           // the backward pass
};

RUDA_HOST_VARIANTS(
    /* Tokens begin..end of the B * T. */
    void rotate(const rotary_tokens& args, int64_t begin, int64_t end);)

}  // namespace ruda

#endif
