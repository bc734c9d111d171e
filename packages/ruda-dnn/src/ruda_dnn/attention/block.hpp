/* What attention's two passes share: packed panels, transposed blocks, tile products, masks.
 *
 * A "column panel" holds 16 values for each k (the b operand of tile_product), a "row panel" 6 (the
 * a operand). Packing converts to float32. In the variant's own namespace, see <ruda/simd.hpp>. */
#ifndef RUDA_DNN_ATTENTION_BLOCK_HPP
#define RUDA_DNN_ATTENTION_BLOCK_HPP

#include <cmath>
#include <limits>

#include <ruda/tile.hpp>

#include "host.hpp"

namespace ruda::RUDA_VARIANT {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr int64_t slack = 8;  // row panels are written eight floats at a time, six of them wanted

static inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
static inline int64_t panels_of(int64_t rows) { return (rows + tile_rows - 1) / tile_rows; }

/* Hands out parts of a worker's scratch, 64 bytes aligned. With a null base it only counts. */
struct carver {
  float* base;
  int64_t used = 0;
  float* take(int64_t count) {
    float* part = base == nullptr ? nullptr : base + used;
    used += round_up(count, 16);
    return part;
  }
};

static inline bool any(vec_bits mask) {
#if defined(__AVX__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask));
#else
  uint32_t all = 0;
  for (int lane = 0; lane < lanes; ++lane) all |= mask[lane];
  return all != 0;
#endif
}

static inline void transpose(vec (&rows)[8]) {
#if defined(__AVX__)
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = reinterpret_cast<__m256>(rows[i]);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = reinterpret_cast<vec>(_mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    rows[i + 4] = reinterpret_cast<vec>(_mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
#else
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < i; ++j) {
      const float value = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = value;
    }
#endif
}

/* e^x for x that is not far above 0; at least 2^-126, so that a key that is seen never has a weight
 * of exactly 0. NaN stays NaN. */
static inline vec visible_exponential(vec x) {
  const auto [fraction, exponent] =
      split_exponential(select(mask_bits(x < -87.3f), splat(-87.3f), x));
  return fraction * as_float((exponent + 127u) << 23);
}

/* A score of -infinity is a key that is not seen. */
static inline vec weight_of(vec score, vec peak) {
  const vec_bits seen = mask_bits(score != minus_infinity);
  return as_float(seen & as_bits(visible_exponential(score - peak)));
}

static inline vec_bits not_finite(vec value) {
  return mask_bits((as_bits(value) & 0x7f800000u) == 0x7f800000u);
}

/* ---- packing ---- */

template <class T>
static inline vec load_some(const T* source, int64_t count) {
  return count < lanes ? load_tail(source, count) : load(source);
}

/* Eight rows from d on, transposed; `count` of them exist. A fixed number of rows keeps the block in
 * registers. */
template <int rows, class T>
static inline void load_turned(const T* source, int64_t stride, int64_t count, int64_t rest,
                               float factor, vec (&block)[8]) {
  if (count >= rows && rest == lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) block[i] = load(source + i * stride) * factor;
#pragma GCC unroll 8
    for (int i = rows; i < 8; ++i) block[i] = vec{};
  } else {
    for (int i = 0; i < 8; ++i) {
      block[i] = i < std::min<int64_t>(rows, count) ? load_some(source + i * stride, rest) * factor
                                                    : vec{};
    }
  }
  transpose(block);
}

/* The transpose of up to 16 rows as a column panel: panel[d * 16 + i] = factor * row_i[d]. Rows
 * beyond `rows` are 0. */
template <class T>
static inline void pack_columns(const T* source, int64_t stride, int64_t rows, int64_t width,
                                float factor, float* panel) {
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = half * lanes;
    for (int64_t d = 0; d < width; d += lanes) {
      const int64_t rest = std::min(lanes, width - d);
      vec block[8];
      load_turned<8>(source + first * stride + d, stride, rows - first, rest, factor, block);
      for (int64_t i = 0; i < rest; ++i) store(panel + (d + i) * 16 + first, block[i]);
    }
  }
}

/* The transpose of up to 6 rows as a row panel: panel[d * 6 + i] = factor * row_i[d]. Writes two
 * floats beyond the panel: pack in ascending order. */
template <class T>
static inline void pack_rows(const T* source, int64_t stride, int64_t rows, int64_t width,
                             float factor, float* panel) {
  for (int64_t d = 0; d < width; d += lanes) {
    const int64_t rest = std::min(lanes, width - d);
    vec block[8];
    load_turned<6>(source + d, stride, rows, rest, factor, block);
    if (rest == lanes) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < lanes; ++i) store(panel + (d + i) * tile_rows, block[i]);
    } else {
      for (int64_t i = 0; i < rest; ++i) store(panel + (d + i) * tile_rows, block[i]);
    }
  }
}

/* The floats between two row panels of pack_features. */
static inline int64_t feature_stride(int64_t rows) { return rows * tile_rows + slack; }

/* Row panels over the features: panel_p[row * 6 + i] = source[row][6 p + i], for all of `width`;
 * `capacity` rows set the distance of the panels. Gives whether every value is finite. */
template <class T>
static inline bool pack_features(const T* source, int64_t stride, int64_t rows, int64_t width,
                                 int64_t capacity, float* panels) {
  vec_bits special = {};
  const int64_t count = panels_of(width), distance = feature_stride(capacity);
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = source + row * stride;
    float* to = panels + row * tile_rows;
    int64_t p = 0;
    for (; p * tile_rows + lanes <= width; ++p) {
      const vec value = load(from + p * tile_rows);
      special |= not_finite(value);
      store(to + p * distance, value);
    }
    for (; p < count; ++p) {
      const int64_t rest = std::min(lanes, width - p * tile_rows);
      const vec value =
          rest < lanes ? load_tail(from + p * tile_rows, rest) : load(from + p * tile_rows);
      special |= not_finite(value);
      store(to + p * distance, value);
    }
  }
  return !any(special);
}

/* 16 columns of `features` values, [feature][16], to rows of T: row_i[d] = factor_i * block[d][i].
 * The block may be read up to the next multiple of eight features. */
template <class T>
static inline void store_columns(const float* block, int64_t features, const float* factors, T* target,
                                 int64_t stride, int64_t rows) {
  for (int64_t half = 0; half * lanes < rows; ++half) {
    const vec factor = load(factors + half * lanes);
    const int64_t count = std::min(lanes, rows - half * lanes);
    for (int64_t d = 0; d < features; d += lanes) {
      vec part[8];
      for (int64_t i = 0; i < lanes; ++i) {
        part[i] = load(block + (d + i) * 16 + half * lanes) * factor;
      }
      transpose(part);
      const int64_t rest = std::min(lanes, features - d);
      for (int64_t i = 0; i < count; ++i) {
        T* to = target + (half * lanes + i) * stride + d;
        if (rest < lanes) {
          store_tail(to, part[i], rest);
        } else {
          store(to, part[i]);
        }
      }
    }
  }
}

/* The floats of `features` columns of 16 that store_columns reads. */
static inline int64_t columns_size(int64_t features) {
  return 16 * std::max(panels_of(features) * tile_rows, round_up(features, lanes));
}

/* ---- products ---- */

/* tile_product where a weight of 0 hides what it would multiply, NaN and infinity included. */
static inline void hiding_product(int64_t k, const float* a, const float* b, float* c,
                                  bool accumulate) {
  for (int64_t i = 0; i < tile_rows; ++i) {
    vec sum[2] = {};
    for (int64_t p = 0; p < k; ++p) {
      for (int half = 0; half < 2; ++half) {
        const vec weight = load(b + p * tile_cols + half * lanes);
        const vec_bits seen = mask_bits(weight != 0.0f);
        sum[half] += as_float(seen & as_bits(weight * a[p * tile_rows + i]));
      }
    }
    for (int half = 0; half < 2; ++half) {
      float* row = c + i * tile_cols + half * lanes;
      store(row, accumulate ? load(row) + sum[half] : sum[half]);
    }
  }
}

/* c[feature][16] (+)= sum over k of features[k] * weights[k][16], all panels of the features. */
static inline void weighted_sum(bool finite, int64_t k, const float* features, int64_t distance,
                                int64_t count, const float* weights, float* c, bool accumulate) {
  if (finite) [[likely]] {
    for (int64_t p = 0; p < count; ++p) {
      tile_product(k, features + p * distance, weights, c + p * tile_rows * tile_cols, tile_cols,
                   accumulate);
    }
  } else {
    for (int64_t p = 0; p < count; ++p) {
      hiding_product(k, features + p * distance, weights, c + p * tile_rows * tile_cols,
                     accumulate);
    }
  }
}

/* ---- masks ---- */

static inline vec lane_numbers(int64_t first) {
  vec numbers;
  for (int lane = 0; lane < lanes; ++lane) numbers[lane] = static_cast<float>(first + lane);
  return numbers;
}

/* A bound on lane numbers as a float: far outside is as good as any other outside. */
static inline vec lane_bound(int64_t bound) {
  return splat(static_cast<float>(std::clamp<int64_t>(bound, -64, 64)));
}

/* The score with a mask's addend; -infinity hides even a NaN. */
static inline vec masked(vec score, vec addend) {
  return select(mask_bits(addend == minus_infinity), splat(minus_infinity), score + addend);
}

/* The mask of one query as addends: `count` (at most 8) keys from `key` on. */
template <class M>
static inline vec mask_row(const M* row, int64_t key_stride, int64_t count) {
  M values[lanes] = {};
  const M* from = row;
  if (key_stride != 1 || count < lanes) {
    for (int64_t i = 0; i < count; ++i) values[i] = row[i * key_stride];
    from = values;
  }
  if constexpr (std::is_same_v<M, uint8_t>) {
#if defined(__AVX2__)
    const __m256i wide = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const vec_bits bits = reinterpret_cast<vec_bits>(wide);
#else
    vec_bits bits;
    for (int lane = 0; lane < lanes; ++lane) bits[lane] = from[lane];
#endif
    return as_float(mask_bits(bits == 0u) & 0xff800000u);  // -infinity where not seen, else 0
  } else {
    return load(from);
  }
}

/* Calls fn(pointer to the storage type) for the mask's values. */
template <class F>
static inline void with_mask(const attention_mask& mask, F&& fn) {
  if (mask.dtype == RUDA_BOOL) {
    fn(static_cast<const uint8_t*>(mask.data));
  } else {
    with_storage(mask.dtype, [&](auto type) {
      fn(static_cast<const decltype(type)*>(mask.data));
    });
  }
}

template <class T>
static inline T* rows_of(const attention_tensor& tensor, int64_t batch, int64_t row, int64_t head) {
  return static_cast<T*>(tensor.data) + batch * tensor.batch + row * tensor.row +
         head * tensor.head;
}

}  // namespace ruda::RUDA_VARIANT

#endif
