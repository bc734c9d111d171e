/* Shapes of a broadcast matrix product, reduced to the fewest and largest plain products. */
#ifndef RUDA_BLAS_GEMM_PLAN_HPP
#define RUDA_BLAS_GEMM_PLAN_HPP

#include <cstdint>

#include "../native/entries.hpp"

namespace ruda::blas {

constexpr int32_t most_dims = 8;

/* c[i] = a[i] @ b[i] for every index i over `sizes`; strides in elements, 0 where an operand is
 * broadcast. */
struct gemm_problem {
  int64_t m = 0, n = 0, k = 0;
  matrix a, b, c;
  epilogue how;
  int32_t batch_dims = 0;
  int64_t batches = 1;
  int64_t sizes[most_dims] = {};
  int64_t a_strides[most_dims] = {};
  int64_t b_strides[most_dims] = {};
  int64_t c_strides[most_dims] = {};

  void offsets(int64_t batch, int64_t* a_offset, int64_t* b_offset, int64_t* c_offset) const;
  matrix a_of(int64_t batch) const;
  matrix b_of(int64_t batch) const;
  matrix c_of(int64_t batch) const;
};

/* Checks the views; nothing has been written when it fails. */
int32_t check_product(const gemm_args& args, bool one_dtype, const char* operation,
                      ruda_error* error);

/* Of checked arguments. */
gemm_problem problem_of(const gemm_args& args);

/* c^T = b^T @ a^T, for results that are column-major. */
void transpose(gemm_problem* problem);

}  // namespace ruda::blas

#endif
