/* NF4 arithmetic on the host. */
#ifndef RUDA_BLAS_NF4_HOST_HPP
#define RUDA_BLAS_NF4_HOST_HPP

#include <cstdint>

#include "../native/strided.hpp"

namespace ruda::blas {

/* The 16 NF4 values: quantiles of the normal distribution scaled to [-1, 1], with an exact 0. */
constexpr float nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/* A quantised weight [rows, cols]; codes and blocks run over the flat row-major weight. */
struct nf4_weight {
  const uint8_t* packed;
  const float* scales;
  const float* codebook; /* 16 values */
  int64_t rows;
  int64_t cols;
  int64_t block_size;
};

}  // namespace ruda::blas

namespace ruda {

RUDA_HOST_VARIANTS(
  /* The first flat index in [begin, end) of `weight` [rows, cols] that is NaN or infinite, or -1. */
  int64_t nf4_find_nonfinite(const blas::matrix& weight, int64_t cols, int64_t begin, int64_t end);

  /* Codes and scales of blocks [begin, end). */
  void nf4_quantize_blocks(const blas::matrix& weight, int64_t cols, int64_t count,
                           int64_t block_size, int64_t begin, int64_t end, uint8_t* packed,
                           float* scales);

  /* target[0..count) = the dense values from flat index `begin` on. */
  void nf4_decode_run(const blas::nf4_weight& weight, int64_t begin, int64_t count, float* target);

  /* target[r * ld + c] = W[row + r, col + c]. */
  void nf4_decode_panel(const blas::nf4_weight& weight, int64_t row, int64_t rows, int64_t col,
                        int64_t cols, float* target, int64_t ld);

  /* target[m * ldt + r] = x[m, :] . W[begin + r, :] for rows [begin, end); at most 4 rows of x. */
  void nf4_dot_rows(const blas::nf4_weight& weight, const float* x, int64_t ldx, int64_t x_rows,
                    int64_t begin, int64_t end, float* target, int64_t ldt);
)

}  // namespace ruda

#endif
