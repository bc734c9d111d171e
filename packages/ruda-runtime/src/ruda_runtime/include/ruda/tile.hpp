/* The float32 tile product that the host's blocked products are made of.
 *
 * Operands are packed panels: `a` holds tile_rows values for each k, `b` holds tile_cols values for
 * each k, both contiguous. In the variant's own namespace, see <ruda/simd.hpp>. */
#ifndef RUDA_TILE_HPP
#define RUDA_TILE_HPP

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {

/* 6 x 16 fills the sixteen AVX2 registers: 12 sums, two vectors of b, one broadcast of a. */
constexpr int64_t tile_rows = 6;
constexpr int64_t tile_cols = 16;

/* c[i * ldc + j] (+)= sum over k of a[k * tile_rows + i] * b[k * tile_cols + j]; the sums run over k
 * in order. `accumulate` false overwrites c without reading it. */
static inline void tile_product(int64_t k, const float* a, const float* b, float* c, int64_t ldc,
                                bool accumulate) {
  vec sum[tile_rows][2] = {};
  for (int64_t p = 0; p < k; ++p) {
    const vec low = load(b + p * tile_cols), high = load(b + p * tile_cols + lanes);
#pragma GCC unroll 6
    for (int64_t i = 0; i < tile_rows; ++i) {
      const vec value = splat(a[p * tile_rows + i]);
      sum[i][0] += value * low;
      sum[i][1] += value * high;
    }
  }
#pragma GCC unroll 6
  for (int64_t i = 0; i < tile_rows; ++i) {
    float* row = c + i * ldc;
    if (accumulate) {
      sum[i][0] += load(row);
      sum[i][1] += load(row + lanes);
    }
    store(row, sum[i][0]);
    store(row + lanes, sum[i][1]);
  }
}

/* The same for a tile at the edge: only `rows` x `cols` values of c exist. The panels are padded. */
static inline void tile_product_edge(int64_t k, const float* a, const float* b, float* c,
                                     int64_t ldc, bool accumulate, int64_t rows, int64_t cols) {
  float whole[tile_rows * tile_cols];
  tile_product(k, a, b, whole, tile_cols, false);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      float* value = c + i * ldc + j;
      *value = accumulate ? *value + whole[i * tile_cols + j] : whole[i * tile_cols + j];
    }
}

}  // namespace ruda::RUDA_VARIANT

#endif
