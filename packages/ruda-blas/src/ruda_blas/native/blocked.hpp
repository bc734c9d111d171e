/* Products over operands that BLAS cannot read as they are: other storage types, awkward strides,
 * quantised weights. One block of the result at a time: panels of both operands are written as
 * float32 into scratch memory, multiplied by OpenBLAS and accumulated over slices of k; the result is
 * rounded once. A block is one thread's work; nothing waits for another block.
 *
 * Blocks, slices and their order depend on the shapes and the scratch budget only, never on the
 * number of threads: a result is the same bits for any thread count. */
#ifndef RUDA_BLAS_BLOCKED_HPP
#define RUDA_BLAS_BLOCKED_HPP

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ruda/entry.hpp>

#include "openblas.hpp"
#include "strided.hpp"

namespace ruda::blas {

inline int64_t ceil_div(int64_t count, int64_t part) { return (count + part - 1) / part; }

/* Scratch of one thread that need not come from the allocator. */
constexpr int64_t stack_floats = 4096;

struct block_plan {
  int64_t m, n, k; /* sizes of a block and of a slice */
  int64_t m_blocks, n_blocks;
  int64_t floats; /* scratch of one block */
};

/* `budget`: scratch floats that one block may take; copy_a / copy_c: whether the panel of a and the
 * block of the result need scratch. Blocks of n and slices of k are multiples of `step` where they
 * can be. */
block_plan plan_blocks(int64_t m, int64_t n, int64_t k, int64_t batches, int64_t budget, bool copy_a,
                       bool copy_c, int64_t step);

/* Whether BLAS can read the matrix in place, and how. */
bool blas_layout(const matrix& operand, int64_t rows, int64_t cols, layout* found);

struct blocked_product {
  int64_t batches, m, n, k;
  block_plan plan;
  bool copy_a, copy_c;
  layout a_layout; /* when a is read in place */
  epilogue how;
  /* More steps of the sum, of one batch: update_a [m, update_k] @ update_b [update_k, n]. */
  int64_t update_k = 0;
  matrix update_a, update_b;
  layout update_a_layout; /* when it is read in place, which copy_a decides for both */
};

/* a_of(batch), c_of(batch): matrices [m, k] and [m, n].
 * load_b(batch, k0, slice, n0, cols, panel): writes the panel and tells its layout. */
template <class AOf, class COf, class LoadB>
void run_blocked(const blocked_product& work, AOf&& a_of, COf&& c_of, LoadB&& load_b) {
  const block_plan& plan = work.plan;
  const int64_t per_batch = plan.m_blocks * plan.n_blocks;
  const int64_t items = work.batches * per_batch;
  const bool on_stack = plan.floats <= stack_floats;
  const int64_t threads = api()->num_threads();
  const int64_t slots = on_stack ? 0 : std::min(items, threads);
  const scratch<float> memory(slots * plan.floats);
  const auto load = RUDA_HOST(load_block);
  const auto store = RUDA_HOST(store_block);

  parallel_for(0, items, 1, [&](int64_t item, int64_t, int32_t worker) {
    float small[stack_floats];
    float* own = on_stack ? small : memory.get() + (items < threads ? item : worker) * plan.floats;
    const int64_t batch = item / per_batch;
    const int64_t m0 = item % per_batch / plan.n_blocks * plan.m;
    const int64_t n0 = item % plan.n_blocks * plan.n;
    const int64_t rows = std::min(plan.m, work.m - m0);
    const int64_t cols = std::min(plan.n, work.n - n0);
    const matrix a = a_of(batch).at(m0, 0);
    matrix c = c_of(batch).at(m0, n0);

    float* b_panel = own;
    float* a_panel = b_panel + plan.n * plan.k;
    float* sum = work.copy_c ? a_panel + (work.copy_a ? plan.m * plan.k : 0) : c.floats();
    // One row may have any row stride; BLAS refuses one below the columns.
    const int64_t ld = work.copy_c || rows == 1 ? cols : c.row_stride;
    float kept = 0.0f;  // the first slice overwrites the sum
    if (work.k == 0 && work.update_k == 0)
      for (int64_t r = 0; r < rows; ++r) std::memset(sum + r * ld, 0, cols * sizeof(float));
    const auto accumulate = [&](const matrix& part, layout part_layout, int64_t slice,
                                layout b_layout) {
      if (work.copy_a) {
        load(part, rows, slice, a_panel, slice);
        part_layout = {false, slice};
      }
      sgemm(part_layout, b_layout, rows, cols, slice, 1.0f, work.copy_a ? a_panel : part.floats(),
            b_panel, kept, sum, ld);
      kept = 1.0f;
    };
    for (int64_t k0 = 0; k0 < work.k; k0 += plan.k) {
      const int64_t slice = std::min(plan.k, work.k - k0);
      const layout b_layout = load_b(batch, k0, slice, n0, cols, b_panel);
      accumulate(a.at(0, k0), work.a_layout, slice, b_layout);
    }
    for (int64_t k0 = 0; k0 < work.update_k; k0 += plan.k) {
      const int64_t slice = std::min(plan.k, work.update_k - k0);
      load(work.update_b.at(k0, n0), slice, cols, b_panel, cols);
      accumulate(work.update_a.at(m0, k0), work.update_a_layout, slice, {false, cols});
    }
    epilogue how = work.how;
    if (how.bias.data != nullptr) how.bias = how.bias.at(m0, n0);
    if (work.copy_c || !how.plain()) store(sum, ld, rows, cols, c, how);
  });
}

}  // namespace ruda::blas

#endif
