#include "strided.hpp"

#include <algorithm>
#include <type_traits>

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

constexpr int64_t chunk = 256;

template <class T>
void load_typed(const blas::matrix& source, int64_t rows, int64_t cols, float* target, int64_t ld) {
  const T* from = reinterpret_cast<const T*>(source.data);
  if (source.col_stride == 1) {
    for (int64_t r = 0; r < rows; ++r) load_row(from + r * source.row_stride, target + r * ld, cols);
    return;
  }
  // Small squares, so that neither side walks through memory with a long stride for long.
  constexpr int64_t side = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += side)
    for (int64_t c0 = 0; c0 < cols; c0 += side) {
      const int64_t r1 = std::min(r0 + side, rows);
      const int64_t c1 = std::min(c0 + side, cols);
      for (int64_t c = c0; c < c1; ++c) {
        const T* column = from + c * source.col_stride;
        for (int64_t r = r0; r < r1; ++r) target[r * ld + c] = to_float(column[r * source.row_stride]);
      }
    }
}

/* values[j] += factor * row[j * stride] */
void add_strided(float* values, float factor, const blas::matrix& row, int64_t count) {
  float wide[chunk];
  load_block(row, 1, count, wide, count);
  for (int64_t j = 0; j < count; ++j) values[j] += factor * wide[j];
}

template <class T>
void write_strided(const float* values, const blas::matrix& target, int64_t count) {
  T* to = reinterpret_cast<T*>(target.data);
  if (target.col_stride == 1) {
    store_row(values, to, count);
  } else {
    for (int64_t j = 0; j < count; ++j) to[j * target.col_stride] = from_float<T>(values[j]);
  }
}

/* Rows of b `apart` from each other: several streams from memory, and independent sums that hide the
 * latency of the multiply-add. Their order never changes. */
template <class T, int rows, int cols>
RUDA_INLINE void dot_group(const float* a, int64_t lda, const T* b, int64_t stride, int64_t apart,
                           int64_t k, float* target, int64_t ldt) {
  constexpr int parts = rows * cols < 8 ? 2 : 1;
  constexpr int64_t step = parts * lanes;
  constexpr int64_t ahead = 2048 / sizeof(T);
  stride *= apart;
  vec sum[parts][rows][cols] = {};
  int64_t i = 0;
  for (; i + step <= k; i += step) {
#pragma GCC unroll 4
    for (int n = 0; n < cols; ++n) __builtin_prefetch(b + n * stride + i + ahead, 0, 2);
#pragma GCC unroll 2
    for (int s = 0; s < parts; ++s) {
      vec value[cols];
#pragma GCC unroll 4
      for (int n = 0; n < cols; ++n) value[n] = load(b + n * stride + i + s * lanes);
#pragma GCC unroll 4
      for (int m = 0; m < rows; ++m) {
        const vec left = load(a + m * lda + i + s * lanes);
#pragma GCC unroll 4
        for (int n = 0; n < cols; ++n) sum[s][m][n] += value[n] * left;
      }
    }
  }
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < cols; ++n) {
      vec total = sum[0][m][n];
      if (parts > 1) total += sum[parts - 1][m][n];
      float result = sum_lanes(total);
      for (int64_t j = i; j < k; ++j) result += to_float(b[n * stride + j]) * a[m * lda + j];
      target[m * ldt + n * apart] = result;
    }
}

template <class T, int rows>
void dot_typed(const float* a, int64_t lda, const blas::matrix& b, int64_t k, int64_t begin,
               int64_t end, float* target, int64_t ldt) {
  constexpr int cols = rows > 2 ? 3 : 4;
  const T* from = reinterpret_cast<const T*>(b.data);
  // Each stream goes through a range of its own, so that short rows too follow each other in it.
  const int64_t each = (end - begin) / cols;
  int64_t n = begin;
  for (; n < begin + each; ++n)
    dot_group<T, rows, cols>(a, lda, from + n * b.row_stride, b.row_stride, each, k, target + n, ldt);
  for (n = begin + each * cols; n < end; ++n)
    dot_group<T, rows, 1>(a, lda, from + n * b.row_stride, b.row_stride, 1, k, target + n, ldt);
}

constexpr int64_t panel = 8; /* rows that meet a row of sums while it is in registers */

/* target[m, j] += sum over r < `depth` of a[m * lda + r] * b[r, j], for one tile of columns. */
template <class T, int rows, int vectors>
RUDA_INLINE void add_tile(const float* a, int64_t lda, const T* b, int64_t stride, int64_t depth,
                          float* target, int64_t ldt) {
  vec sum[rows][vectors];
#pragma GCC unroll 4
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[m][v] = load(target + m * ldt + v * lanes);
  for (int64_t r = 0; r < depth; ++r) {
    vec value[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      value[v] = load(b + r * stride + v * lanes);
      if (v * lanes * sizeof(T) % 64 == 0)  // the next panel, as its rows may be far apart and short
        __builtin_prefetch(b + (panel + r) * stride + v * lanes, 0, 2);
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; ++m) {
      const vec by = splat(a[m * lda + r]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[m][v] += by * value[v];
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(target + m * ldt + v * lanes, sum[m][v]);
}

template <class T, int rows>
void add_typed(const float* a, int64_t lda, const blas::matrix& b, int64_t k, int64_t cols,
               float* target, int64_t ldt) {
  constexpr int vectors = rows == 1 ? 4 : 2;
  const T* from = reinterpret_cast<const T*>(b.data);
  for (int64_t r = 0; r < k; r += panel) {
    const int64_t depth = std::min(panel, k - r);
    const T* row = from + r * b.row_stride;
    int64_t j = 0;
    for (; j + vectors * lanes <= cols; j += vectors * lanes)
      add_tile<T, rows, vectors>(a + r, lda, row + j, b.row_stride, depth, target + j, ldt);
    for (; j + lanes <= cols; j += lanes)
      add_tile<T, rows, 1>(a + r, lda, row + j, b.row_stride, depth, target + j, ldt);
    for (; j < cols; ++j)
      for (int m = 0; m < rows; ++m) {
        float sum = target[m * ldt + j];
        for (int64_t i = 0; i < depth; ++i)
          sum += a[m * lda + r + i] * to_float(row[i * b.row_stride + j]);
        target[m * ldt + j] = sum;
      }
  }
}

/* Calls fn(std::integral_constant<int, rows>()) for 1 to 4 rows. */
template <class F>
void with_rows(int64_t rows, F&& fn) {
  switch (rows) {
    case 1: fn(std::integral_constant<int, 1>()); break;
    case 2: fn(std::integral_constant<int, 2>()); break;
    case 3: fn(std::integral_constant<int, 3>()); break;
    default: fn(std::integral_constant<int, 4>()); break;
  }
}

}  // namespace

void load_block(const blas::matrix& source, int64_t rows, int64_t cols, float* target, int64_t ld) {
  with_storage(source.dtype, [&](auto type) {
    load_typed<decltype(type)>(source, rows, cols, target, ld);
  });
}

void store_block(const float* source, int64_t ld, int64_t rows, int64_t cols,
                 const blas::matrix& target, const blas::epilogue& how) {
  with_storage(target.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; c += chunk) {
        const int64_t count = std::min(chunk, cols - c);
        const float* from = source + r * ld + c;
        if (how.plain()) {
          write_strided<T>(from, target.at(r, c), count);
          continue;
        }
        float values[chunk];
        for (int64_t j = 0; j < count; ++j) values[j] = how.alpha * from[j];
        if (how.beta != 0.0f) add_strided(values, how.beta, target.at(r, c), count);
        if (how.bias.data != nullptr) add_strided(values, 1.0f, how.bias.at(r, c), count);
        write_strided<T>(values, target.at(r, c), count);
      }
  });
}

void dot_rows(const float* a, int64_t lda, int64_t rows, const blas::matrix& b, int64_t k,
              int64_t begin, int64_t end, float* target, int64_t ldt) {
  with_storage(b.dtype, [&](auto type) {
    with_rows(rows, [&](auto count) {
      dot_typed<decltype(type), count()>(a, lda, b, k, begin, end, target, ldt);
    });
  });
}

void add_rows(const float* a, int64_t lda, int64_t rows, const blas::matrix& b, int64_t k,
              int64_t cols, float* target, int64_t ldt) {
  with_storage(b.dtype, [&](auto type) {
    with_rows(rows, [&](auto count) {
      add_typed<decltype(type), count()>(a, lda, b, k, cols, target, ldt);
    });
  });
}

}  // namespace ruda::RUDA_VARIANT
