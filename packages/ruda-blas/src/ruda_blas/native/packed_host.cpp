#include <algorithm>

#include <ruda/tile.hpp>

#include "packed.hpp"

namespace ruda::RUDA_VARIANT {
namespace {

/* Transposes eight vectors of eight lanes. */
inline __attribute__((always_inline)) void transpose(vec row[lanes]) {
  vec pair[lanes], quad[lanes];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pair[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pair[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const vec left = pair[i + j], right = pair[i + j + 2];
      quad[i + 2 * j] = __builtin_shufflevector(left, right, 0, 1, 8, 9, 4, 5, 12, 13);
      quad[i + 2 * j + 1] = __builtin_shufflevector(left, right, 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    row[i] = __builtin_shufflevector(quad[i], quad[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    row[i + 4] = __builtin_shufflevector(quad[i], quad[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/* Six lanes: the target may end there. */
inline void store_six(float* target, vec value) {
  const auto four = __builtin_shufflevector(value, value, 0, 1, 2, 3);
  const auto two = __builtin_shufflevector(value, value, 4, 5);
  std::memcpy(target, &four, sizeof(four));
  std::memcpy(target + 4, &two, sizeof(two));
}

/* Rows contiguous over k: eight steps at a time through a transposition. */
template <class T>
void pack_row_panel(const T* from, int64_t row_stride, int64_t rows, int64_t count, float* target) {
  int64_t p = 0;
  for (; rows == tile_rows && p + lanes <= count; p += lanes) {
    vec value[lanes] = {};
#pragma GCC unroll 6
    for (int64_t i = 0; i < tile_rows; ++i) {
      value[i] = load(from + i * row_stride + p);
      __builtin_prefetch(from + (i + tile_rows) * row_stride + p);  // of the next panel
    }
    transpose(value);
    // A whole vector reaches two floats into the next step, which is written after it.
#pragma GCC unroll 7
    for (int64_t t = 0; t + 1 < lanes; ++t) store(target + (p + t) * tile_rows, value[t]);
    store_six(target + (p + lanes - 1) * tile_rows, value[lanes - 1]);
  }
  for (; p < count; ++p)
    for (int64_t i = 0; i < tile_rows; ++i)
      target[p * tile_rows + i] = i < rows ? to_float(from[i * row_stride + p]) : 0.0f;
}

/* Steps contiguous over the rows: six values of each. A few steps at a time, so that all panels find
 * them in the cache. */
template <class T>
void pack_step_panels(const T* from, int64_t col_stride, int64_t rows, int64_t count, float* target,
                      int64_t stride) {
  constexpr int64_t together = 16;
  for (int64_t p0 = 0; p0 < count; p0 += together) {
    const int64_t p1 = std::min(p0 + together, count);
    for (int64_t i = 0; i < rows; i += tile_rows) {
      float* panel = target + i / tile_rows * stride;
      int64_t p = p0;
      // A whole vector reaches two floats into the next step, which is written after it.
      for (; i + lanes <= rows && p < p1 && p + 1 < count; ++p)
        store(panel + p * tile_rows, load(from + p * col_stride + i));
      for (; p < p1; ++p)
        store_six(panel + p * tile_rows,
                  load_tail(from + p * col_stride + i, std::min(tile_rows, rows - i)));
    }
  }
}

template <class T>
void pack_rows_typed(const blas::matrix& a, int64_t rows, int64_t count, float* target,
                     int64_t stride) {
  const T* from = reinterpret_cast<const T*>(a.data);
  if (a.row_stride == 1 && a.col_stride != 1) {
    pack_step_panels(from, a.col_stride, rows, count, target, stride);
    return;
  }
  for (int64_t i = 0; i < rows; i += tile_rows, target += stride) {
    const int64_t part = std::min(tile_rows, rows - i);
    const T* panel = from + i * a.row_stride;
    if (a.col_stride == 1) {
      pack_row_panel(panel, a.row_stride, part, count, target);
    } else {
      for (int64_t p = 0; p < count; ++p)
        for (int64_t r = 0; r < tile_rows; ++r)
          target[p * tile_rows + r] =
              r < part ? to_float(panel[r * a.row_stride + p * a.col_stride]) : 0.0f;
    }
  }
}

/* Columns contiguous over k (a transposed matrix): eight columns and steps at a time. */
template <class T>
void pack_deep_columns(const T* from, int64_t col_stride, int64_t count, int64_t cols,
                       blas::panels to) {
  for (int64_t j = 0; j < (cols + tile_cols - 1) / tile_cols * tile_cols; j += lanes) {
    float* target = to.data + j / tile_cols * to.stride + j % tile_cols;
    const int64_t part = std::clamp<int64_t>(cols - j, 0, lanes);
    const T* columns = from + j * col_stride;
    int64_t p = 0;
    for (; part == lanes && p + lanes <= count; p += lanes) {
      vec value[lanes];
#pragma GCC unroll 8
      for (int64_t i = 0; i < lanes; ++i) value[i] = load(columns + i * col_stride + p);
      transpose(value);
#pragma GCC unroll 8
      for (int64_t t = 0; t < lanes; ++t) store(target + (p + t) * tile_cols, value[t]);
    }
    for (; p < count; ++p)
      for (int64_t i = 0; i < lanes; ++i)
        target[p * tile_cols + i] = i < part ? to_float(columns[i * col_stride + p]) : 0.0f;
  }
}

template <class T>
void pack_columns_typed(const blas::matrix& b, int64_t count, int64_t cols, blas::panels to) {
  const T* from = reinterpret_cast<const T*>(b.data);
  if (b.row_stride == 1 && b.col_stride != 1) {
    pack_deep_columns(from, b.col_stride, count, cols, to);
    return;
  }
  for (int64_t p = 0; p < count; ++p) {
    const T* row = from + p * b.row_stride;
    for (int64_t j = 0; j < cols; j += tile_cols) {
      float* target = to.data + j / tile_cols * to.stride + p * tile_cols;
      const int64_t part = std::min(tile_cols, cols - j);
      if (b.col_stride == 1 && part == tile_cols) {
        store(target, load(row + j));
        store(target + lanes, load(row + j + lanes));
      } else {
        for (int64_t i = 0; i < tile_cols; ++i)
          target[i] = i < part ? to_float(row[(j + i) * b.col_stride]) : 0.0f;
      }
    }
  }
}

/* tile_product over operands of any steps. */
inline void tile_of_operands(int64_t k, const float* a, int64_t a_lane, int64_t a_step,
                             const float* b, int64_t b_step, float* c, int64_t ldc,
                             bool accumulate) {
  vec sum[tile_rows][2] = {};
  const float* below = a + 3 * a_lane;
  for (int64_t p = 0; p < k; ++p) {
    const vec low = load(b), high = load(b + lanes);
#pragma GCC unroll 3
    for (int64_t i = 0; i < 3; ++i) {
      const vec upper = splat(a[i * a_lane]), lower = splat(below[i * a_lane]);
      sum[i][0] += upper * low;
      sum[i][1] += upper * high;
      sum[i + 3][0] += lower * low;
      sum[i + 3][1] += lower * high;
    }
    a += a_step;
    below += a_step;
    b += b_step;
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

}  // namespace

void pack_rows(const blas::matrix& a, int64_t rows, int64_t count, float* target, int64_t stride) {
  with_storage(a.dtype, [&](auto type) {
    pack_rows_typed<decltype(type)>(a, rows, count, target, stride);
  });
}

void pack_dense_columns(const blas::matrix& b, int64_t count, int64_t cols, blas::panels to) {
  with_storage(b.dtype, [&](auto type) {
    pack_columns_typed<decltype(type)>(b, count, cols, to);
  });
}

void multiply_operands(int64_t rows, int64_t cols, int64_t k, const blas::operand_panels& a,
                       const blas::operand_panels& b, float* c, int64_t ldc, bool accumulate) {
  // Whole tiles are read: what ends within one is copied and filled up.
  float last_a[tile_rows * blas::most_slice], last_b[tile_cols * blas::most_slice];
  const int64_t whole_rows = a.padded ? rows : rows / tile_rows * tile_rows;
  const int64_t whole_cols = b.padded ? cols : cols / tile_cols * tile_cols;
  const auto values = [](const blas::operand_panels& of, int64_t tile) {
    return reinterpret_cast<char*>(const_cast<float*>(of.data + tile * of.panel));
  };
  if (whole_rows < rows)
    pack_rows({values(a, rows / tile_rows), a.lane, a.step, RUDA_FLOAT32, 4}, rows - whole_rows, k,
              last_a, 0);
  if (whole_cols < cols)
    pack_dense_columns({values(b, cols / tile_cols), b.step, 1, RUDA_FLOAT32, 4}, k,
                       cols - whole_cols, {last_b, 0});
  for (int64_t j = 0; j < cols; j += tile_cols) {
    const bool right_copied = j >= whole_cols;
    const float* right = right_copied ? last_b : b.data + j / tile_cols * b.panel;
    const int64_t right_step = right_copied ? tile_cols : b.step;
    const int64_t width = std::min(tile_cols, cols - j);
    for (int64_t i = 0; i < rows; i += tile_rows) {
      const bool left_copied = i >= whole_rows;
      const float* left = left_copied ? last_a : a.data + i / tile_rows * a.panel;
      const int64_t lane = left_copied ? 1 : a.lane, step = left_copied ? tile_rows : a.step;
      const int64_t height = std::min(tile_rows, rows - i);
      float* target = c + i * ldc + j;
      if (height == tile_rows && width == tile_cols) {
        tile_of_operands(k, left, lane, step, right, right_step, target, ldc, accumulate);
        continue;
      }
      float whole[tile_rows * tile_cols];
      tile_of_operands(k, left, lane, step, right, right_step, whole, tile_cols, false);
      for (int64_t r = 0; r < height; ++r)
        for (int64_t s = 0; s < width; ++s) {
          float& value = target[r * ldc + s];
          value = accumulate ? value + whole[r * tile_cols + s] : whole[r * tile_cols + s];
        }
    }
  }
}

void multiply_panels(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t a_stride,
                     const float* b, int64_t b_stride, float* c, int64_t ldc, bool accumulate) {
  // A block of a stays in the L2 cache while the panels of b, each in the L1 cache, meet it.
  constexpr int64_t block_floats = 65536;
  const int64_t block =
      std::max(tile_rows, block_floats / std::max<int64_t>(k, 1) / tile_rows * tile_rows);
  for (int64_t i0 = 0; i0 < rows; i0 += block) {
    const int64_t i1 = std::min(i0 + block, rows);
    for (int64_t j = 0; j < cols; j += tile_cols) {
      const float* right = b + j / tile_cols * b_stride;
      for (int64_t i = i0; i < i1; i += tile_rows) {
        const float* left = a + i / tile_rows * a_stride;
        float* target = c + i * ldc + j;
        const int64_t height = std::min(tile_rows, rows - i), width = std::min(tile_cols, cols - j);
        if (height == tile_rows && width == tile_cols) {
          tile_product(k, left, right, target, ldc, accumulate);
        } else {
          tile_product_edge(k, left, right, target, ldc, accumulate, height, width);
        }
      }
    }
  }
}

}  // namespace ruda::RUDA_VARIANT
