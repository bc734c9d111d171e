/* Products of up to four rows: bound by reading b, which is read once, in its own storage type. */
#ifndef RUDA_BLAS_GEMM_FEW_ROWS_HPP
#define RUDA_BLAS_GEMM_FEW_ROWS_HPP

#include "plan.hpp"

namespace ruda::blas {

constexpr int64_t few_rows = 4;

/* Computes the product when it has few rows and one axis of b is contiguous; false: nothing done. */
bool run_few_rows(const gemm_problem& p);

}  // namespace ruda::blas

#endif
