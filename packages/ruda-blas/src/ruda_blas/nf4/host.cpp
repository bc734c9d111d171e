#include "host.hpp"

#include <algorithm>

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

constexpr int64_t chunk = 2048; /* values on the stack between two steps */

/* Flat indices [begin, begin + count) of a strided [rows, cols] weight, as float32. Contiguous
 * float32 is not copied. */
const float* read_flat(const blas::matrix& weight, int64_t cols, int64_t begin, int64_t count,
                       float* buffer) {
  const bool dense = weight.col_stride == 1 && weight.row_stride == cols;
  if (dense && weight.dtype == RUDA_FLOAT32) return weight.floats() + begin;
  if (dense) {
    load_block(weight.at(0, begin), 1, count, buffer, count);
    return buffer;
  }
  for (int64_t done = 0; done < count;) {
    const int64_t row = (begin + done) / cols, col = (begin + done) % cols;
    const int64_t part = std::min(cols - col, count - done);
    load_block(weight.at(row, col), 1, part, buffer + done, part);
    done += part;
  }
  return buffer;
}

/* Bits of the largest magnitude. As integers they order like the magnitudes, with infinity and then
 * every NaN on top: one maximum finds the scale and the values that have none. */
uint32_t largest_bits(const float* values, int64_t count) {
  typedef int32_t vec_int __attribute__((vector_size(32)));
  vec_int most[2] = {};
  const auto raise = [&](vec_int& largest, const float* from) {
    const vec_int bits = reinterpret_cast<vec_int>(load(from)) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    __builtin_prefetch(values + i + 1024);  // across the page, where the hardware stops
    raise(most[0], values + i);
    raise(most[1], values + i + lanes);
  }
  int32_t largest = 0;
  for (int lane = 0; lane < lanes; ++lane)
    largest = std::max({largest, most[0][lane], most[1][lane]});
  for (; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    largest = std::max(largest, bits & 0x7fffffff);
  }
  return static_cast<uint32_t>(largest);
}

constexpr float midpoint(int i) { return (blas::nf4_values[i] + blas::nf4_values[i + 1]) / 2; }
constexpr float midpoints[15] = {
    midpoint(0), midpoint(1), midpoint(2),  midpoint(3),  midpoint(4),  midpoint(5),  midpoint(6),
    midpoint(7), midpoint(8), midpoint(9), midpoint(10), midpoint(11), midpoint(12), midpoint(13),
    midpoint(14)};

/* A block's scale and the factors that bring its values to [-1, 1]. The reciprocal of a subnormal
 * overflows: such blocks are lifted first, which is exact. */
struct block_scale {
  float value, lift, inverse;

  explicit block_scale(uint32_t bits) {
    std::memcpy(&value, &bits, sizeof(value));
    lift = value < 0x1p-120f ? 0x1p100f : 1.0f;
    inverse = value > 0.0f ? 1.0f / (value * lift) : 0.0f;
  }
};

#if defined(__AVX2__)

/* Eight codes, negated. A search through the midpoints in four comparisons: a true one is -1, so the
 * place reached so far, doubled plus the comparison, is minus the number of the interval; the next
 * midpoint is looked up with it (its low three bits). */
static inline __m256i negated_codes(__m256 value) {
  const float* m = midpoints;
  const __m256 second = _mm256_setr_ps(m[1], 0, 0, 0, 0, m[13], m[9], m[5]);
  const __m256 third = _mm256_setr_ps(m[0], m[14], m[12], m[10], m[8], m[6], m[4], m[2]);
  const auto above = [&](__m256 midpoint) { return _mm256_cmp_ps(value, midpoint, _CMP_GT_OQ); };
  const auto next = [](__m256i place, __m256 comparison) {
    return _mm256_add_epi32(_mm256_add_epi32(place, place), _mm256_castps_si256(comparison));
  };
  const __m256 upper = above(_mm256_set1_ps(m[7]));
  const __m256 quarter = above(_mm256_blendv_ps(_mm256_set1_ps(m[3]), _mm256_set1_ps(m[11]), upper));
  __m256i place = next(_mm256_castps_si256(upper), quarter);
  place = next(place, above(_mm256_permutevar8x32_ps(second, place)));
  return next(place, above(_mm256_permutevar8x32_ps(third, place)));
}

/* 32 values to 16 bytes. */
static inline void encode_32(const float* values, const block_scale& scale, uint8_t* packed) {
  const __m256 lift = _mm256_set1_ps(scale.lift), inverse = _mm256_set1_ps(scale.inverse);
  const auto codes = [&](int i) {
    const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(values + 8 * i), lift);
    return negated_codes(_mm256_mul_ps(value, inverse));
  };
  // Packing interleaves 16-byte lanes: the order is restored at the end.
  const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(codes(0), codes(1)),
                                           _mm256_packs_epi32(codes(2), codes(3)));
  const __m256i bytes = _mm256_sub_epi8(_mm256_setzero_si256(), words);
  const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0110));  // 16 * even + odd
  const __m256i halves = _mm256_packus_epi16(pairs, pairs);
  const __m128i low = _mm256_castsi256_si128(halves), high = _mm256_extracti128_si256(halves, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(packed), _mm_unpacklo_epi16(low, high));
}

#endif

/* Two codes a byte; a code is the number of midpoints below the scaled value. The missing partner of
 * an odd last value counts as 0. */
void encode(const float* values, int64_t count, const block_scale& scale, uint8_t* packed) {
#if defined(__AVX2__)
  for (; count >= 32; count -= 32, values += 32, packed += 16) encode_32(values, scale, packed);
#endif
  alignas(32) uint8_t codes[chunk + 1];
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = values[i] * scale.lift * scale.inverse;
    int32_t code = 0;
    for (int t = 0; t < 15; ++t) code += scaled > midpoints[t] ? 1 : 0;
    codes[i] = static_cast<uint8_t>(code);
  }
  codes[count] = 7;
  for (int64_t i = 0; i < (count + 1) / 2; ++i) {
    uint16_t pair;
    std::memcpy(&pair, codes + 2 * i, sizeof(pair));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    packed[i] = static_cast<uint8_t>((pair << 4) | (pair >> 8));
#else
    packed[i] = static_cast<uint8_t>((pair >> 4) | pair);
#endif
  }
}

/* `count` codes from code index `position` on, through a table of 16 values times `scale`. */
void decode_codes(const uint8_t* packed, int64_t position, int64_t count, const float* codebook,
                  float scale, float* target) {
  alignas(32) float table[16];
  for (int i = 0; i < 16; ++i) table[i] = codebook[i] * scale;
  const uint8_t* bytes = packed + position / 2;
  int64_t i = 0;
  if (position % 2 != 0 && count > 0) target[i++] = table[*bytes++ & 15];
#if defined(__AVX2__)
  // Lane j takes nibble j of four bytes, high nibble first: its low three bits index both halves of
  // the table, its top bit, moved to the sign, chooses between them.
  const __m256 lower = _mm256_load_ps(table), upper = _mm256_load_ps(table + 8);
  const __m256i down = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
  const __m256i up = _mm256_setr_epi32(24, 28, 16, 20, 8, 12, 0, 4);
  for (; i + 8 <= count; i += 8, bytes += 4) {
    int32_t word;
    std::memcpy(&word, bytes, sizeof(word));
    const __m256i codes = _mm256_set1_epi32(word);
    const __m256i index = _mm256_srlv_epi32(codes, down);
    const __m256 choice = _mm256_castsi256_ps(_mm256_sllv_epi32(codes, up));
    const __m256 value = _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, index),
                                          _mm256_permutevar8x32_ps(upper, index), choice);
    _mm256_storeu_ps(target + i, value);
  }
#endif
  for (; i + 2 <= count; i += 2, ++bytes) {
    target[i] = table[*bytes >> 4];
    target[i + 1] = table[*bytes & 15];
  }
  if (i < count) target[i] = table[*bytes >> 4];
}

template <int rows>
void dot_chunk(const float* w, int64_t count, const float* x, int64_t ldx, float* sums) {
  constexpr int parts = rows == 1 ? 4 : 2;
  vec sum[parts][rows] = {};
  int64_t i = 0;
  for (; i + parts * lanes <= count; i += parts * lanes)
    for (int s = 0; s < parts; ++s) {
      const vec value = load(w + i + s * lanes);
      for (int m = 0; m < rows; ++m) sum[s][m] += value * load(x + m * ldx + i + s * lanes);
    }
  for (; i + lanes <= count; i += lanes) {
    const vec value = load(w + i);
    for (int m = 0; m < rows; ++m) sum[0][m] += value * load(x + m * ldx + i);
  }
  for (int m = 0; m < rows; ++m) {
    vec total = sum[0][m];
    for (int s = 1; s < parts; ++s) total += sum[s][m];
    float result = sum_lanes(total);
    for (int64_t j = i; j < count; ++j) result += w[j] * x[m * ldx + j];
    sums[m] += result;
  }
}

}  // namespace

int64_t nf4_find_nonfinite(const blas::matrix& weight, int64_t cols, int64_t begin, int64_t end) {
  float buffer[chunk];
  for (int64_t at = begin; at < end; at += chunk) {
    const int64_t count = std::min(chunk, end - at);
    const float* values = read_flat(weight, cols, at, count, buffer);
    if (largest_bits(values, count) < 0x7f800000u) continue;
    for (int64_t i = 0; i < count; ++i)
      if (largest_bits(values + i, 1) >= 0x7f800000u) return at + i;
  }
  return -1;
}

void nf4_quantize_blocks(const blas::matrix& weight, int64_t cols, int64_t count,
                         int64_t block_size, int64_t begin, int64_t end, uint8_t* packed,
                         float* scales) {
  float buffer[chunk];
  // Whole blocks at a time where several fit the buffer; else a block in pieces, read twice.
  const int64_t together = std::max<int64_t>(1, chunk / block_size);
  for (int64_t group = begin; group < end; group += together) {
    const int64_t first = group * block_size;
    const int64_t last = std::min({(group + together) * block_size, end * block_size, count});
    const bool whole = block_size <= chunk;
    const float* values = whole ? read_flat(weight, cols, first, last - first, buffer) : nullptr;
    for (int64_t at = first; at < last; at += block_size) {
      const int64_t stop = std::min(at + block_size, last);
      uint32_t bits = 0;
      for (int64_t piece = at; piece < stop; piece += chunk) {
        const int64_t part = std::min(chunk, stop - piece);
        const float* from = whole ? values + (piece - first)
                                  : read_flat(weight, cols, piece, part, buffer);
        bits = std::max(bits, largest_bits(from, part));
      }
      const block_scale scale(bits);
      scales[at / block_size] = scale.value;
      for (int64_t piece = at; piece < stop; piece += chunk) {
        const int64_t part = std::min(chunk, stop - piece);
        const float* from = whole ? values + (piece - first)
                                  : read_flat(weight, cols, piece, part, buffer);
        encode(from, part, scale, packed + piece / 2);
      }
    }
  }
}

void nf4_decode_run(const blas::nf4_weight& weight, int64_t begin, int64_t count, float* target) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = begin + done, block = at / weight.block_size;
    const int64_t part = std::min((block + 1) * weight.block_size - at, count - done);
    decode_codes(weight.packed, at, part, weight.codebook, weight.scales[block], target + done);
    done += part;
  }
}

void nf4_decode_panel(const blas::nf4_weight& weight, int64_t row, int64_t rows, int64_t col,
                      int64_t cols, float* target, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r)
    nf4_decode_run(weight, (row + r) * weight.cols + col, cols, target + r * ld);
}

void nf4_dot_rows(const blas::nf4_weight& weight, const float* x, int64_t ldx, int64_t x_rows,
                  int64_t begin, int64_t end, float* target, int64_t ldt) {
  constexpr int64_t step = 512;
  float values[step];
  for (int64_t row = begin; row < end; ++row) {
    float sums[4] = {};
    for (int64_t at = 0; at < weight.cols; at += step) {
      const int64_t count = std::min(step, weight.cols - at);
      nf4_decode_run(weight, row * weight.cols + at, count, values);
      switch (x_rows) {
        case 1: dot_chunk<1>(values, count, x + at, ldx, sums); break;
        case 2: dot_chunk<2>(values, count, x + at, ldx, sums); break;
        case 3: dot_chunk<3>(values, count, x + at, ldx, sums); break;
        default: dot_chunk<4>(values, count, x + at, ldx, sums); break;
      }
    }
    for (int64_t m = 0; m < x_rows; ++m) target[m * ldt + row - begin] = sums[m];
  }
}

}  // namespace ruda::RUDA_VARIANT
