#include "blocked.hpp"

#include <climits>

namespace ruda::blas {
namespace {

/* A part of `total` of at most `limit`, such that the parts are about equal and (but for the last)
 * multiples of `step`. */
int64_t even_part(int64_t total, int64_t limit, int64_t step) {
  if (total <= limit) return std::max<int64_t>(total, 1);
  const int64_t part = ceil_div(total, ceil_div(total, limit));
  return std::min(limit, ceil_div(part, step) * step);
}

}  // namespace

block_plan plan_blocks(int64_t m, int64_t n, int64_t k, int64_t batches, int64_t budget, bool copy_a,
                       bool copy_c, int64_t step) {
  constexpr int64_t side = 256;      // rows and columns of a block: packing costs little beyond it
  constexpr int64_t slice = 512;     // panels stay in the L2 cache
  constexpr int64_t wanted = 8;      // blocks, so that some threads can share the work
  constexpr int64_t m_step = 16;
  constexpr int64_t smallest = 64;
  const auto usage = [&](int64_t bm, int64_t bn, int64_t bk) {
    return bn * bk + (copy_a ? bm * bk : 0) + (copy_c ? bm * bn : 0);
  };
  int64_t bm = even_part(m, side, m_step);
  int64_t bn = even_part(n, side, step);
  while (batches * ceil_div(m, bm) * ceil_div(n, bn) < wanted) {
    if (bn > smallest && bn >= bm) {
      bn = even_part(n, std::max(smallest, bn / 2), step);
    } else if (bm > smallest) {
      bm = even_part(m, std::max(smallest, bm / 2), m_step);
    } else if (bn > smallest) {
      bn = even_part(n, smallest, step);
    } else {
      break;
    }
  }
  const int64_t shortest = std::min<int64_t>(k, 128);
  while (usage(bm, bn, shortest) > budget && (bm > 8 || bn > 8)) {
    if (bn >= bm) {
      bn = std::max<int64_t>(1, bn / 2);
    } else {
      bm = std::max<int64_t>(1, bm / 2);
    }
  }
  int64_t bk = shortest;  // where even small blocks exceed the budget, they fit the stack
  if (usage(bm, bn, shortest) <= budget)
    bk = std::min({k, slice, (budget - usage(bm, bn, 0)) / (bn + (copy_a ? bm : 0))});
  bk = std::max<int64_t>(bk, 1);
  bk = even_part(k, bk, bk >= step ? std::min(step, bk) : 1);
  return {bm, bn, bk, ceil_div(m, bm), ceil_div(n, bn), usage(bm, bn, bk)};
}

bool blas_layout(const matrix& operand, int64_t rows, int64_t cols, layout* found) {
  const int64_t row = operand.row_stride;
  const int64_t col = operand.col_stride;
  const auto fits = [](int64_t value) { return value <= INT_MAX; };
  if (operand.dtype != RUDA_FLOAT32 || !fits(rows) || !fits(cols)) return false;
  if ((col == 1 || cols <= 1) && (rows <= 1 || (row >= std::max<int64_t>(cols, 1) && fits(row)))) {
    *found = {false, rows <= 1 ? std::max<int64_t>(cols, 1) : row};
    return true;
  }
  if ((row == 1 || rows <= 1) && (cols <= 1 || (col >= std::max<int64_t>(rows, 1) && fits(col)))) {
    *found = {true, cols <= 1 ? std::max<int64_t>(rows, 1) : col};
    return true;
  }
  return false;
}

}  // namespace ruda::blas
