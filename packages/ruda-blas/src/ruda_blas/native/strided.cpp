#include "strided.hpp"

#include <algorithm>

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

template <class T, int rows>
void dot_typed(const float* a, int64_t lda, const blas::matrix& b, int64_t k, int64_t begin,
               int64_t end, float* target, int64_t ldt) {
  // Independent sums hide the latency of the multiply-add; their order never changes.
  constexpr int sums = rows == 1 ? 4 : 2;
  for (int64_t n = begin; n < end; ++n) {
    const T* row = reinterpret_cast<const T*>(b.data) + n * b.row_stride;
    vec sum[sums][rows] = {};
    int64_t i = 0;
    for (; i + sums * lanes <= k; i += sums * lanes)
      for (int s = 0; s < sums; ++s) {
        const vec value = load(row + i + s * lanes);
        for (int m = 0; m < rows; ++m) sum[s][m] += value * load(a + m * lda + i + s * lanes);
      }
    for (; i + lanes <= k; i += lanes) {
      const vec value = load(row + i);
      for (int m = 0; m < rows; ++m) sum[0][m] += value * load(a + m * lda + i);
    }
    for (int m = 0; m < rows; ++m) {
      vec total = sum[0][m];
      for (int s = 1; s < sums; ++s) total += sum[s][m];
      float result = sum_lanes(total);
      for (int64_t j = i; j < k; ++j) result += to_float(row[j]) * a[m * lda + j];
      target[m * ldt + n] = result;
    }
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
    using T = decltype(type);
    switch (rows) {
      case 1: dot_typed<T, 1>(a, lda, b, k, begin, end, target, ldt); break;
      case 2: dot_typed<T, 2>(a, lda, b, k, begin, end, target, ldt); break;
      case 3: dot_typed<T, 3>(a, lda, b, k, begin, end, target, ldt); break;
      default: dot_typed<T, 4>(a, lda, b, k, begin, end, target, ldt); break;
    }
  });
}

}  // namespace ruda::RUDA_VARIANT
