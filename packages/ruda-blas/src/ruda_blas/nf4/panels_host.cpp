#include "panels.hpp"

#include <algorithm>

#include <ruda/tile.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

constexpr int64_t chunk = 128; /* steps decoded at a time where rows go through a buffer */

/* Any weight: rows are decoded into a buffer and packed from there. */
void pack_transposed_runs(const blas::nf4_weight& weight, int64_t col, int64_t count, int64_t row,
                          int64_t cols, blas::panels to) {
  float values[tile_cols * chunk];
  for (int64_t p = 0; p < count; p += chunk) {
    const int64_t steps = std::min(chunk, count - p);
    for (int64_t j = 0; j < cols; j += tile_cols) {
      const int64_t part = std::min(tile_cols, cols - j);
      nf4_decode_panel(weight, row + j, part, col + p, steps, values, chunk);
      const blas::matrix decoded{reinterpret_cast<char*>(values), 1, chunk, RUDA_FLOAT32, 4};
      pack_dense_columns(decoded, steps, part,
                         {to.data + j / tile_cols * to.stride + p * tile_cols, to.stride});
    }
  }
}

void pack_straight_runs(const blas::nf4_weight& weight, int64_t row, int64_t count, int64_t col,
                        int64_t cols, blas::panels to) {
  float values[tile_cols * chunk];
  constexpr int64_t most = tile_cols * chunk;
  for (int64_t p = 0; p < count; ++p)
    for (int64_t j = 0; j < cols; j += most) {
      const int64_t part = std::min(most, cols - j);
      nf4_decode_run(weight, (row + p) * weight.cols + col + j, part, values);
      const blas::matrix decoded{reinterpret_cast<char*>(values), most, 1, RUDA_FLOAT32, 4};
      pack_dense_columns(decoded, 1, part,
                         {to.data + j / tile_cols * to.stride + p * tile_cols, to.stride});
    }
}

#if defined(__AVX2__)

/* The sixteen values as two registers: the low three bits of a code index both, its top bit, brought
 * to the sign, chooses. */
struct code_table {
  __m256 lower, upper;

  explicit code_table(const float* values)
      : lower(_mm256_loadu_ps(values)), upper(_mm256_loadu_ps(values + 8)) {}
  __m256 operator()(__m256i index, __m256i choice) const {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, index),
                            _mm256_permutevar8x32_ps(upper, index), _mm256_castsi256_ps(choice));
  }
};

int32_t word_at(const uint8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/* Step t of eight (a constant once unrolled) is the high or the low nibble of byte t / 2. */
template <int t>
inline void decode_step(const code_table& table, __m256i words, __m256 scale, float* target) {
  constexpr int down = t / 2 * 8 + (t % 2 == 0 ? 4 : 0);
  const __m256i index = down == 0 ? words : _mm256_srli_epi32(words, down);
  const __m256i choice = down == 28 ? words : _mm256_slli_epi32(words, 28 - down);
  _mm256_storeu_ps(target + t * tile_cols, _mm256_mul_ps(table(index, choice), scale));
}

/* Eight rows of W at a time: one word of eight codes from each makes eight lanes, and each of the
 * eight steps is then a shift, a look-up and the rows' scales. */
void pack_transposed_words(const blas::nf4_weight& weight, int64_t col, int64_t count, int64_t row,
                           int64_t cols, blas::panels to) {
  const code_table table(weight.codebook);
  for (int64_t j = 0; j < (cols + tile_cols - 1) / tile_cols * tile_cols; j += lanes) {
    float* target = to.data + j / tile_cols * to.stride + j % tile_cols;
    const int64_t part = std::clamp<int64_t>(cols - j, 0, lanes);
    const uint8_t* bytes[lanes];
    const float* scales[lanes];
    for (int64_t i = 0; i < lanes; ++i) {  // missing rows repeat the last one, times 0 below
      const int64_t flat = (row + (i < part ? j + i : cols - 1)) * weight.cols;
      bytes[i] = weight.packed + (flat + col) / 2;
      scales[i] = weight.scales + flat / weight.block_size;
    }
    for (int64_t p = 0; p < count;) {
      const int64_t block = (col + p) / weight.block_size;
      const int64_t stop = std::min(count, (block + 1) * weight.block_size - col);
      alignas(32) float factors[lanes];
      for (int64_t i = 0; i < lanes; ++i) factors[i] = i < part ? scales[i][block] : 0.0f;
      const __m256 scale = _mm256_load_ps(factors);
      for (; p < stop; p += lanes) {
        const int64_t at = p / 2;
        const __m256i words = _mm256_setr_epi32(
            word_at(bytes[0] + at), word_at(bytes[1] + at), word_at(bytes[2] + at),
            word_at(bytes[3] + at), word_at(bytes[4] + at), word_at(bytes[5] + at),
            word_at(bytes[6] + at), word_at(bytes[7] + at));
        float* step = target + p * tile_cols;
        decode_step<0>(table, words, scale, step);
        decode_step<1>(table, words, scale, step);
        decode_step<2>(table, words, scale, step);
        decode_step<3>(table, words, scale, step);
        decode_step<4>(table, words, scale, step);
        decode_step<5>(table, words, scale, step);
        decode_step<6>(table, words, scale, step);
        decode_step<7>(table, words, scale, step);
      }
    }
  }
}

/* Sixteen codes of a row are one step of a panel and share a scale. */
void pack_straight_words(const blas::nf4_weight& weight, int64_t row, int64_t count, int64_t col,
                         int64_t cols, blas::panels to) {
  const code_table table(weight.codebook);
  const __m256i down = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
  const __m256i up = _mm256_setr_epi32(24, 28, 16, 20, 8, 12, 0, 4);
  constexpr int64_t ahead = 8;
  for (int64_t p = 0; p < count; ++p) {
    const int64_t flat = (row + p) * weight.cols + col;
    const uint8_t* bytes = weight.packed + flat / 2;
    float* target = to.data + p * tile_cols;
    int64_t block = flat / weight.block_size;
    int64_t stop = (block + 1) * weight.block_size - flat;
    if (p + ahead < count) {  // rows lie too far apart for the processor to foresee them
      const uint8_t* next = bytes + ahead * weight.cols / 2;
      __builtin_prefetch(next);
      __builtin_prefetch(next + (cols - 1) / 2);
      __builtin_prefetch(weight.scales + (flat + ahead * weight.cols) / weight.block_size);
    }
    for (int64_t j = 0; j < cols; j += tile_cols, target += to.stride) {
      for (; j >= stop; stop += weight.block_size) ++block;
      const __m256 scale = _mm256_broadcast_ss(weight.scales + block);
      for (int64_t half = 0; half < 2; ++half) {
        const __m256i words = _mm256_set1_epi32(word_at(bytes + j / 2 + half * 4));
        const __m256 value = table(_mm256_srlv_epi32(words, down), _mm256_sllv_epi32(words, up));
        _mm256_storeu_ps(target + half * lanes, _mm256_mul_ps(value, scale));
      }
    }
  }
}

#endif

}  // namespace

void nf4_pack_transposed(const blas::nf4_weight& weight, int64_t col, int64_t count, int64_t row,
                         int64_t cols, blas::panels to) {
#if defined(__AVX2__)
  // Words must not straddle bytes or blocks, and blocks begin at the same step in every row.
  if (weight.block_size % lanes == 0 && weight.cols % weight.block_size == 0 && col % lanes == 0 &&
      count % lanes == 0)
    return pack_transposed_words(weight, col, count, row, cols, to);
#endif
  pack_transposed_runs(weight, col, count, row, cols, to);
}

void nf4_pack_straight(const blas::nf4_weight& weight, int64_t row, int64_t count, int64_t col,
                       int64_t cols, blas::panels to) {
#if defined(__AVX2__)
  if (weight.block_size % tile_cols == 0 && weight.cols % tile_cols == 0 && col % tile_cols == 0)
    return pack_straight_words(weight, row, count, col, cols, to);
#endif
  pack_straight_runs(weight, row, count, col, cols, to);
}

}  // namespace ruda::RUDA_VARIANT
