/* Blocks of strided matrices in any storage type, to and from float32 panels. */
#ifndef RUDA_BLAS_STRIDED_HPP
#define RUDA_BLAS_STRIDED_HPP

#include <cstdint>

#include <ruda/abi.h>

#include <ruda/variants.hpp>

namespace ruda::blas {

/* A matrix in memory; strides count elements and may be 0 or negative. */
struct matrix {
  char* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int32_t dtype = RUDA_FLOAT32;
  int64_t item = 4;

  matrix at(int64_t row, int64_t col) const {
    matrix moved = *this;
    moved.data += (row * row_stride + col * col_stride) * item;
    return moved;
  }
  matrix transposed() const { return {data, col_stride, row_stride, dtype, item}; }
  const float* floats() const { return reinterpret_cast<const float*>(data); }
  float* floats() { return reinterpret_cast<float*>(data); }
};

/* What happens to a product on its way out: alpha * product + beta * out + bias. */
struct epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  matrix bias;  /* data == nullptr: none; a broadcast axis has stride 0 */

  bool plain() const { return alpha == 1.0f && beta == 0.0f && bias.data == nullptr; }
};

}  // namespace ruda::blas

namespace ruda {

RUDA_HOST_VARIANTS(
  /* target[r * ld + c] = source[r, c] as float32. */
  void load_block(const blas::matrix& source, int64_t rows, int64_t cols, float* target,
                  int64_t ld);

  /* target[r, c] = alpha * source[r * ld + c] + beta * target[r, c] + bias[r, c], rounded once.
   * target is not read when beta is 0. `source` may be target's own memory. */
  void store_block(const float* source, int64_t ld, int64_t rows, int64_t cols,
                   const blas::matrix& target, const blas::epilogue& how);

  /* target[m, n] = a[m, :] . b[n, :] for n in [begin, end), at most 4 rows m; rows of both are contiguous
   * over k, a is float32. target is float32 with row stride ldt. */
  void dot_rows(const float* a, int64_t lda, int64_t rows, const blas::matrix& b, int64_t k,
                int64_t begin, int64_t end, float* target, int64_t ldt);

  /* target[m, j] += sum over r < k of a[m, r] * b[r, j] for j < cols, at most 4 rows m; columns of b
   * are contiguous, a is float32. */
  void add_rows(const float* a, int64_t lda, int64_t rows, const blas::matrix& b, int64_t k,
                int64_t cols, float* target, int64_t ldt);
)

}  // namespace ruda

#endif
