/* NF4 products of one row or a few: the weight's codes are read once and never leave the registers or
 * the L1 cache as numbers. */
#ifndef RUDA_BLAS_NF4_GEMV_HPP
#define RUDA_BLAS_NF4_GEMV_HPP

#include "host.hpp"

namespace ruda::blas {

/* y[rows, to] of x[rows, from], plus the low-rank update update_x[rows, rank] @ update_w[rank, to]. */
struct nf4_problem {
  matrix x, y;
  int64_t rows, from, to;
  int64_t budget; /* floats of scratch that one thread may take */
  nf4_weight weight;
  epilogue how;
  int64_t rank; /* 0: no update */
  matrix update_x, update_w;
};

constexpr int64_t nf4_few_rows = 8;

/* Codes are handled 64 at a time, 32 bytes that share a scale. */
constexpr int64_t nf4_chunk = 64;

/* Adds columns [begin, begin + count) of the update to sums [rows, count], whose rows are ld apart, and
 * writes them to y. At most nf4_few_rows rows and 512 columns. */
void nf4_finish_few_rows(const nf4_problem& p, int64_t begin, int64_t count, float* sums,
                         int64_t ld);

/* Computes the product when it has few rows and its blocks suit the kernels; false: nothing done. */
bool nf4_run_few_rows(const nf4_problem& p, bool forward);

}  // namespace ruda::blas

namespace ruda {

/* The kernels below want block_size and cols to be multiples of nf4_chunk. They keep a few rows as
 * [chunk][row][64], the 64 values in the order in which codes decode fastest ("decoding order", see
 * gemv_host.cpp). */
RUDA_HOST_VARIANTS(
  /* source [rows, cols] to decoding order, as float32. */
  void nf4_to_decoding_order(const blas::matrix& source, int64_t rows, int64_t cols, float* target);

  /* target[r * ldt + c] from decoding order. */
  void nf4_from_decoding_order(const float* source, int64_t rows, int64_t cols, float* target,
                               int64_t ldt);

  /* target[m * ldt + r] = x[m, :] . W[begin + r, :] for rows [begin, end); x has at most nf4_few_rows
   * rows, in decoding order. */
  void nf4_dot_ordered(const blas::nf4_weight& weight, const float* x, int64_t x_rows, int64_t begin,
                       int64_t end, float* target, int64_t ldt);

  /* target += grad[:, begin..end) @ W[begin..end, col..col + cols), target in decoding order; `grad` is
   * float32, its first column is `begin`, its rows are ldg apart. */
  void nf4_add_rows(const blas::nf4_weight& weight, const float* grad, int64_t ldg, int64_t grad_rows,
                    int64_t begin, int64_t end, int64_t col, int64_t cols, float* target);
)

}  // namespace ruda

#endif
