#include "gemv.hpp"

#include <algorithm>

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* Decoding order. The 64 codes of a chunk are the high nibbles of its 32 bytes (the even values) and
 * their low nibbles (the odd ones). 32 nibbles decode to four vectors q = 0..3, whose lanes are bytes
 * 4q .. 4q+3 and 16+4q .. 16+4q+3: what interleaving bytes inside 16-byte lanes gives. */
constexpr int64_t chunk = blas::nf4_chunk;
constexpr int64_t half = chunk / 2;

/* Where the value at `place` of decoding order stands in the chunk. */
constexpr int64_t source_of(int64_t place) {
  const int64_t low_nibble = place / half, q = place % half / 8, lane = place % 8;
  return 2 * (4 * q + (lane < 4 ? lane : 12 + lane)) + low_nibble;
}

#if defined(__AVX2__)

/* The 16 values cut into bytes: plane b holds byte b of each, in both lanes of the register. A value is
 * then four byte look-ups for 32 codes at a time, put together by interleaving. */
struct table {
  __m256i plane[4];

  explicit table(const float* codebook) {
    alignas(16) uint8_t bytes[4][16];
    for (int i = 0; i < 16; ++i) {
      uint32_t bits;
      std::memcpy(&bits, codebook + i, sizeof(bits));
      for (int b = 0; b < 4; ++b) bytes[b][i] = static_cast<uint8_t>(bits >> (8 * b));
    }
    for (int b = 0; b < 4; ++b)
      plane[b] = _mm256_broadcastsi128_si256(
          _mm_load_si128(reinterpret_cast<const __m128i*>(bytes[b])));
  }
};

typedef __m256i codes;

static inline codes load_codes(const uint8_t* packed) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed));
}

/* The even (`low` false) or odd values of a chunk. */
template <bool low>
RUDA_INLINE void decode(const table& from, codes bytes, vec* values) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i index = _mm256_and_si256(low ? bytes : _mm256_srli_epi16(bytes, 4), nibble);
  const __m256i b0 = _mm256_shuffle_epi8(from.plane[0], index);
  const __m256i b1 = _mm256_shuffle_epi8(from.plane[1], index);
  const __m256i b2 = _mm256_shuffle_epi8(from.plane[2], index);
  const __m256i b3 = _mm256_shuffle_epi8(from.plane[3], index);
  const __m256i low_first = _mm256_unpacklo_epi8(b0, b1), low_last = _mm256_unpackhi_epi8(b0, b1);
  const __m256i high_first = _mm256_unpacklo_epi8(b2, b3), high_last = _mm256_unpackhi_epi8(b2, b3);
  values[0] = reinterpret_cast<vec>(_mm256_unpacklo_epi16(low_first, high_first));
  values[1] = reinterpret_cast<vec>(_mm256_unpackhi_epi16(low_first, high_first));
  values[2] = reinterpret_cast<vec>(_mm256_unpacklo_epi16(low_last, high_last));
  values[3] = reinterpret_cast<vec>(_mm256_unpackhi_epi16(low_last, high_last));
}

#else

struct table {
  float value[16];

  explicit table(const float* codebook) { std::copy(codebook, codebook + 16, value); }
};

typedef const uint8_t* codes;

static inline codes load_codes(const uint8_t* packed) { return packed; }

template <bool low>
RUDA_INLINE void decode(const table& from, codes bytes, vec* values) {
  for (int q = 0; q < 4; ++q)
    for (int lane = 0; lane < 8; ++lane) {
      const uint8_t byte = bytes[4 * q + (lane < 4 ? lane : 12 + lane)];
      values[q][lane] = from.value[low ? byte & 15 : byte >> 4];
    }
}

#endif

/* Scales of the chunks of a flat weight, one after the other. */
class scale_walk {
 public:
  scale_walk(const blas::nf4_weight& weight, int64_t flat)
      : next_(weight.scales + flat / weight.block_size),
        chunks_(weight.block_size / chunk),
        left_(chunks_ - flat % weight.block_size / chunk) {}

  float take() {
    const float value = *next_;
    if (--left_ == 0) {
      ++next_;
      left_ = chunks_;
    }
    return value;
  }

 private:
  const float* next_;
  int64_t chunks_, left_;
};

template <bool low, int rows>
RUDA_INLINE void dot_half(const table& from, codes bytes, vec scale, const float* x,
                          vec (&sum)[rows]) {
  vec value[4];
  decode<low>(from, bytes, value);
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    if (rows > 4) value[q] *= scale;
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) sum[m] += value[q] * load(x + m * chunk + q * lanes);
  }
}

/* Up to four rows: the scale multiplies the sums of a chunk, once for 64 products. More rows have no
 * registers for two kinds of sums: the scale multiplies the values. */
template <int rows>
RUDA_INLINE void dot_row(const table& from, const uint8_t* packed, int64_t ahead, scale_walk scales,
                         const float* x, int64_t cols, vec (&total)[rows]) {
  for (int64_t col = 0; col < cols; col += chunk, packed += half, x += rows * chunk) {
    __builtin_prefetch(packed + ahead, 0, 2);
    const codes bytes = load_codes(packed);
    const vec scale = splat(scales.take());
    if constexpr (rows > 4) {
      dot_half<false, rows>(from, bytes, scale, x, total);
      dot_half<true, rows>(from, bytes, scale, x + half, total);
    } else {
      vec even[rows] = {}, odd_sums[rows] = {};
      vec(&odd)[rows] = rows > 2 ? even : odd_sums;  // few sums alone would wait for each other
      dot_half<false, rows>(from, bytes, scale, x, even);
      dot_half<true, rows>(from, bytes, scale, x + half, odd);
#pragma GCC unroll 4
      for (int m = 0; m < rows; ++m) total[m] += scale * (rows > 2 ? even[m] : even[m] + odd[m]);
    }
  }
}

/* A piece of x that stays in the L1 cache meets a few weight rows, then the next piece. */
template <int rows>
void dot_ordered(const blas::nf4_weight& weight, const table& from, const float* x, int64_t begin,
                 int64_t end, float* target, int64_t ldt) {
  constexpr int64_t group = 16;
  constexpr int64_t piece = rows == 1 ? 4096 : 5120 / rows / chunk * chunk;
  for (int64_t first = begin; first < end; first += group) {
    const int64_t last = std::min(first + group, end);
    vec total[group][rows] = {};
    for (int64_t col = 0; col < weight.cols; col += piece) {
      const int64_t cols = std::min(piece, weight.cols - col);
      for (int64_t row = first; row < last; ++row) {
        const int64_t flat = row * weight.cols + col;
        // Short pieces far apart are what no hardware prefetcher foresees.
        const int64_t further =
            row + 2 < last ? 2 * weight.cols : piece - (last - first - 2) * weight.cols;
        vec sums[rows];
        for (int m = 0; m < rows; ++m) sums[m] = total[row - first][m];
        dot_row<rows>(from, weight.packed + flat / 2, further / 2, scale_walk(weight, flat),
                      x + col * rows, cols, sums);
        for (int m = 0; m < rows; ++m) total[row - first][m] = sums[m];
      }
    }
    for (int64_t row = first; row < last; ++row)
      for (int m = 0; m < rows; ++m)
        target[m * ldt + row - begin] = sum_lanes(total[row - first][m]);
  }
}

constexpr int64_t panel_rows = lanes;

/* One row of the gradient: four sums of a chunk's half stay in registers over the panel's rows. */
template <bool low>
RUDA_INLINE void add_half(const table& from, const uint8_t* packed, int64_t stride, int64_t rows,
                            const float* factor, float* target) {
  vec sum[4];
  for (int q = 0; q < 4; ++q) sum[q] = load(target + q * lanes);
  for (int64_t r = 0; r < rows; ++r) {
    vec value[4];
    decode<low>(from, load_codes(packed + r * stride), value);
    const vec by = splat(factor[r]);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) sum[q] += by * value[q];
  }
  for (int q = 0; q < 4; ++q) store(target + q * lanes, sum[q]);
}

/* target[m, 0..64) += factor[m, :rows] @ panel[rows, 64] */
template <int m_rows>
void add_panel(const float* panel, int64_t rows, const float* factor, float* target) {
  for (int64_t c = 0; c < chunk; c += 2 * lanes) {
    vec sum[m_rows][2];
    for (int m = 0; m < m_rows; ++m) {
      sum[m][0] = load(target + m * chunk + c);
      sum[m][1] = load(target + m * chunk + c + lanes);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const vec left = load(panel + r * chunk + c), right = load(panel + r * chunk + c + lanes);
#pragma GCC unroll 4
      for (int m = 0; m < m_rows; ++m) {
        const vec by = splat(factor[m * panel_rows + r]);
        sum[m][0] += by * left;
        sum[m][1] += by * right;
      }
    }
    for (int m = 0; m < m_rows; ++m) {
      store(target + m * chunk + c, sum[m][0]);
      store(target + m * chunk + c + lanes, sum[m][1]);
    }
  }
}

void add_few(const table& from, const uint8_t* packed, int64_t stride, int64_t rows,
             const float* factor, int64_t m_rows, float* target) {
  alignas(32) float panel[panel_rows * chunk];
  for (int64_t r = 0; r < rows; ++r) {
    const codes bytes = load_codes(packed + r * stride);
    vec value[8];
    decode<false>(from, bytes, value);
    decode<true>(from, bytes, value + 4);
    for (int q = 0; q < 8; ++q) store(panel + r * chunk + q * lanes, value[q]);
  }
  for (int64_t m = 0; m < m_rows; m += 4) {
    const float* by = factor + m * panel_rows;
    float* to = target + m * chunk;
    switch (m_rows - m) {
      case 1: add_panel<1>(panel, rows, by, to); break;
      case 2: add_panel<2>(panel, rows, by, to); break;
      case 3: add_panel<3>(panel, rows, by, to); break;
      default: add_panel<4>(panel, rows, by, to); break;
    }
  }
}

}  // namespace

void nf4_to_decoding_order(const blas::matrix& source, int64_t rows, int64_t cols, float* target) {
  for (int64_t c = 0; c < cols; c += chunk)
    for (int64_t r = 0; r < rows; ++r, target += chunk) {
      float values[chunk];
      load_block(source.at(r, c), 1, chunk, values, chunk);
      for (int64_t i = 0; i < chunk; ++i) target[i] = values[source_of(i)];
    }
}

void nf4_from_decoding_order(const float* source, int64_t rows, int64_t cols, float* target,
                             int64_t ldt) {
  for (int64_t c = 0; c < cols; c += chunk)
    for (int64_t r = 0; r < rows; ++r, source += chunk)
      for (int64_t i = 0; i < chunk; ++i) target[r * ldt + c + source_of(i)] = source[i];
}

void nf4_dot_ordered(const blas::nf4_weight& weight, const float* x, int64_t x_rows, int64_t begin,
                     int64_t end, float* target, int64_t ldt) {
  const table from(weight.codebook);
  switch (x_rows) {
    case 1: dot_ordered<1>(weight, from, x, begin, end, target, ldt); break;
    case 2: dot_ordered<2>(weight, from, x, begin, end, target, ldt); break;
    case 3: dot_ordered<3>(weight, from, x, begin, end, target, ldt); break;
    case 4: dot_ordered<4>(weight, from, x, begin, end, target, ldt); break;
    case 5: dot_ordered<5>(weight, from, x, begin, end, target, ldt); break;
    case 6: dot_ordered<6>(weight, from, x, begin, end, target, ldt); break;
    case 7: dot_ordered<7>(weight, from, x, begin, end, target, ldt); break;
    default: dot_ordered<8>(weight, from, x, begin, end, target, ldt); break;
  }
}

void nf4_add_rows(const blas::nf4_weight& weight, const float* grad, int64_t ldg, int64_t grad_rows,
                  int64_t begin, int64_t end, int64_t col, int64_t cols, float* target) {
  const table from(weight.codebook);
  const int64_t stride = weight.cols / 2;
  const bool whole_rows = weight.cols % weight.block_size == 0;  // no block straddles rows
  const int64_t row_blocks = weight.cols / weight.block_size;
  for (int64_t row = begin; row < end; row += panel_rows) {
    const int64_t rows = std::min(panel_rows, end - row);
    for (int64_t c = 0; c < cols; c += chunk) {
      const int64_t flat = row * weight.cols + col + c;
      const uint8_t* packed = weight.packed + flat / 2;
      // The scale of a chunk is folded into the factors that its 64 values share.
      const int64_t block = flat / weight.block_size;
      vec scales = {};
      for (int64_t r = 0; r < rows; ++r)
        scales[r] = weight.scales[whole_rows ? block + r * row_blocks
                                             : (flat + r * weight.cols) / weight.block_size];
      alignas(32) float factor[blas::nf4_few_rows * panel_rows];
      for (int64_t m = 0; m < grad_rows; ++m) {
        const float* own = grad + m * ldg + row - begin;
        store(factor + m * panel_rows,
              scales * (rows == panel_rows ? load(own) : load_tail(own, rows)));
      }
      // The next panel's rows: short pieces far apart, which no hardware prefetcher foresees.
      for (int64_t r = rows; c % (2 * chunk) == 0 && r < std::min(2 * rows, end - row); ++r)
        __builtin_prefetch(packed + r * stride, 0, 2);
      float* to = target + c * grad_rows;
      if (grad_rows == 1) {
        add_half<false>(from, packed, stride, rows, factor, to);
        add_half<true>(from, packed, stride, rows, factor, to + half);
      } else {
        add_few(from, packed, stride, rows, factor, grad_rows, to);
      }
    }
  }
}

}  // namespace ruda::RUDA_VARIANT
