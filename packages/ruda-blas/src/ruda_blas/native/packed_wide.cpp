/* multiply_panels with AVX-512: two panels of rows by two of columns at a time, 12 x 32 values in 24
 * registers. Each value is summed in the same order with the same roundings as in the 6 x 16 tile, so
 * that results are the same bits.
 *
 * Only functions marked RUDA_WIDE use these instructions: the file is compiled for the baseline. */
#include "packed.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#define RUDA_WIDE __attribute__((target("avx512f")))

namespace ruda::wide {
namespace {

constexpr int64_t panel_rows = 6, panel_cols = 16;

/* c[height, width] (+)= of `tall` panels of a and `broad` panels of b. */
template <int tall, int broad>
RUDA_WIDE void multiply_tile(int64_t k, const float* a, int64_t a_stride, const float* b,
                             int64_t b_stride, float* c, int64_t ldc, bool accumulate,
                             int64_t height, int64_t width) {
  constexpr int rows = tall * panel_rows;
  __m512 sum[rows][broad];
#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < broad; ++j) sum[i][j] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k; ++p) {
    __m512 right[broad];
#pragma GCC unroll 2
    for (int j = 0; j < broad; ++j) right[j] = _mm512_loadu_ps(b + j * b_stride + p * panel_cols);
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i) {
      const float* left = a + i / panel_rows * a_stride + p * panel_rows + i % panel_rows;
      const __m512 value = _mm512_set1_ps(*left);
#pragma GCC unroll 2
      for (int j = 0; j < broad; ++j) sum[i][j] = _mm512_fmadd_ps(value, right[j], sum[i][j]);
    }
  }
  __mmask16 mask[broad];
#pragma GCC unroll 2
  for (int j = 0; j < broad; ++j) {
    const int64_t left = std::clamp<int64_t>(width - j * panel_cols, 0, panel_cols);
    mask[j] = static_cast<__mmask16>((uint32_t{1} << left) - 1);
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i) {
    if (i >= height) break;
#pragma GCC unroll 2
    for (int j = 0; j < broad; ++j) {
      float* target = c + i * ldc + j * panel_cols;
      if (accumulate)
        sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_maskz_loadu_ps(mask[j], target));
      _mm512_mask_storeu_ps(target, mask[j], sum[i][j]);
    }
  }
}

using tile = decltype(&multiply_tile<1, 1>);
constexpr tile tiles[2][2] = {{multiply_tile<1, 1>, multiply_tile<1, 2>},
                              {multiply_tile<2, 1>, multiply_tile<2, 2>}};

}  // namespace

void multiply_panels(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t a_stride,
                     const float* b, int64_t b_stride, float* c, int64_t ldc, bool accumulate) {
  // A block of a stays in the L2 cache while pairs of panels of b meet it.
  constexpr int64_t block_floats = 65536, most_rows = 2 * panel_rows, most_cols = 2 * panel_cols;
  const int64_t block =
      std::max(most_rows, block_floats / std::max<int64_t>(k, 1) / most_rows * most_rows);
  for (int64_t i0 = 0; i0 < rows; i0 += block) {
    const int64_t i1 = std::min(i0 + block, rows);
    for (int64_t j = 0; j < cols; j += most_cols) {
      const int64_t width = std::min(most_cols, cols - j);
      for (int64_t i = i0; i < i1; i += most_rows) {
        const int64_t height = std::min(most_rows, i1 - i);
        tiles[height > panel_rows][width > panel_cols](
            k, a + i / panel_rows * a_stride, a_stride, b + j / panel_cols * b_stride, b_stride,
            c + i * ldc + j, ldc, accumulate, height, width);
      }
    }
  }
}

}  // namespace ruda::wide

#endif
