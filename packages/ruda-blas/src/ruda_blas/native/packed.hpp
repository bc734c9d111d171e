/* Matrix products of our own over packed panels, for operands of any storage type and any strides and
 * for weights that are decoded straight into panels.
 *
 *   c[m, n] = how(sum over the parts of a[m, k] @ b[k, n])
 *
 * The left operand is packed as float32 in panels of 6 rows, the right one in panels of 16 columns
 * (<ruda/tile.hpp>). One unit of work is a block of the result: it packs its columns of b, a slice of
 * k at a time, into a panel that stays in the L2 cache, and takes the rows of a past it. Where several
 * units share rows, all rows are packed once beforehand, by all threads. An operand in float32 that
 * only meets a few columns or rows of the other one is read where it lies.
 *
 * Each element of the result is summed in one order, slice by slice of k, and the slices depend on the
 * shapes and the scratch sizes asked for only: a result is the same bits for any number of threads,
 * though blocks are cut so that the threads there are have equal shares. */
#ifndef RUDA_BLAS_PACKED_HPP
#define RUDA_BLAS_PACKED_HPP

#include <cstdint>
#include <functional>

#include "strided.hpp"

namespace ruda::blas {

/* Where a packed panel of b goes: element (p, j) of the block at
 * data[j / 16 * stride + p * 16 + j % 16]; the columns up to the next multiple of 16 are zeros. */
struct panels {
  float* data;
  int64_t stride;
};

/* Packs steps [k0, k0 + count) and columns [n0, n0 + cols) of b. k0 is a multiple of 8, n0 one of 16. */
using pack_columns =
    std::function<void(int64_t batch, int64_t k0, int64_t count, int64_t n0, int64_t cols, panels to)>;

struct packed_part {
  int64_t k = 0;
  matrix a; /* of batch 0 */
  pack_columns pack_b;
  /* b itself where there is a single batch of a dense one: it need not be packed for a few rows of a. */
  matrix b = {};
};

/* One side of a product in float32: value x of step p is data[x / tile * panel + x % tile * lane +
 * p * step], where the tile is 6 for a and 16 for b. Padded: whole tiles may be read. */
struct operand_panels {
  const float* data;
  int64_t lane, step, panel;
  bool padded;
};

/* No slice of k is longer: a panel of 16 columns stays in the L1 cache. */
constexpr int64_t most_slice = 320;

struct packed_problem {
  int64_t m = 0, n = 0, batches = 1;
  packed_part parts[2]; /* the second one (k > 0 where there is one) is added as more steps of k */
  matrix c;             /* of batch 0 */
  epilogue how;
  /* Where batch i begins, in elements, in the first part's a and in c. Not called for one batch. */
  std::function<void(int64_t batch, int64_t* a, int64_t* c)> offsets;
  /* Scratch, in floats: the packed panel of b of one thread (at least 4096 are used), and the packed
   * rows of a that threads share (at least 6 rows, at most 1020 are packed at a time). A result that is
   * not float32 with contiguous rows, or has a beta, takes sums of at most 1020 * 192 floats a thread. */
  int64_t panel_floats = 1 << 16;
  int64_t row_floats = 2'500'000;
};

/* Operands must not overlap the result. Throws status_error when memory runs out. */
void run_packed(const packed_problem& problem);

/* pack_columns of a dense b [k, n] of one batch. */
pack_columns dense_columns(const matrix& b);

/* Whether run_packed is the faster way on this processor: it has AVX2. */
bool prefer_packed();

/* For tests: 0 lets the processor decide, 1 takes the library, 2 the packed products, 3 those without
 * AVX-512. */
void choose_engine(int32_t engine);

}  // namespace ruda::blas

namespace ruda {

RUDA_HOST_VARIANTS(
  /* Rows of a, as float32, in panels of 6: target[i / 6 * stride + p * 6 + i % 6]; missing rows of the
   * last panel are zeros. */
  void pack_rows(const blas::matrix& a, int64_t rows, int64_t count, float* target, int64_t stride);

  /* Columns of b [count, cols]. */
  void pack_dense_columns(const blas::matrix& b, int64_t count, int64_t cols, blas::panels to);

  /* c (+)= a @ b over packed panels of k steps, a_stride and b_stride apart. */
  void multiply_panels(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t a_stride,
                       const float* b, int64_t b_stride, float* c, int64_t ldc, bool accumulate);

  /* The same for operands that need not be packed; b's columns are contiguous, k is at most
   * most_slice. */
  void multiply_operands(int64_t rows, int64_t cols, int64_t k, const blas::operand_panels& a,
                         const blas::operand_panels& b, float* c, int64_t ldc, bool accumulate);
)

namespace wide {
/* multiply_panels for processors with AVX-512F. */
void multiply_panels(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t a_stride,
                     const float* b, int64_t b_stride, float* c, int64_t ldc, bool accumulate);
}  // namespace wide

}  // namespace ruda

#endif
