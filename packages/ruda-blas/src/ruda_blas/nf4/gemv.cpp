#include "gemv.hpp"

#include <algorithm>

#include "../native/blocked.hpp"

namespace ruda::blas {
namespace {

/* Weights that one part of a loop decodes at least: a few microseconds. */
constexpr int64_t part_values = 32768;

/* sums[m * ld + j] += update_x[m, :] . update_w[:, begin + j] for j below `count`, at most 512. */
void add_update(const nf4_problem& p, int64_t begin, int64_t count, float* sums, int64_t ld) {
  constexpr int64_t step = 8, most = 512;
  const auto load = RUDA_HOST(load_block);
  float left[nf4_few_rows * step], right[step * most];
  for (int64_t r0 = 0; r0 < p.rank; r0 += step) {
    const int64_t slice = std::min(step, p.rank - r0);
    load(p.update_x.at(0, r0), p.rows, slice, left, step);
    load(p.update_w.at(r0, begin), slice, count, right, most);
    for (int64_t m = 0; m < p.rows; ++m)
      for (int64_t r = 0; r < slice; ++r)
        for (int64_t j = 0; j < count; ++j)
          sums[m * ld + j] += left[m * step + r] * right[r * most + j];
  }
}

void run_forward(const nf4_problem& p) {
  const auto dot = RUDA_HOST(nf4_dot_ordered);
  alignas(32) float small[stack_floats];
  const bool on_stack = p.rows * p.from <= stack_floats;
  const scratch<float> large(on_stack ? 0 : p.rows * p.from);
  float* x = on_stack ? small : large.get();
  RUDA_HOST(nf4_to_decoding_order)(p.x, p.rows, p.from, x);
  constexpr int64_t most = 64;
  const int64_t grain = std::min(most, grain_for(p.from, part_values));
  parallel_for(0, p.to, grain, [&](int64_t begin, int64_t end, int32_t) {
    float sums[nf4_few_rows * most];
    dot(p.weight, x, p.rows, begin, end, sums, most);
    nf4_finish_few_rows(p, begin, end - begin, sums, most);
  });
}

/* Parts of the columns: the sum over the weight's rows stays in one part, in order. */
void run_backward(const nf4_problem& p) {
  const auto load = RUDA_HOST(load_block);
  const auto add = RUDA_HOST(nf4_add_rows);
  const auto reorder = RUDA_HOST(nf4_from_decoding_order);
  constexpr int64_t most = 512, step = 256;
  const int64_t grain = grain_for(p.from * nf4_chunk, part_values);
  const int64_t chunks = std::min(most / nf4_chunk, grain);
  parallel_for(0, p.to / nf4_chunk, chunks, [&](int64_t begin, int64_t end, int32_t) {
    const int64_t col = begin * nf4_chunk, cols = (end - begin) * nf4_chunk;
    alignas(32) float ordered[nf4_few_rows * most];
    float sums[nf4_few_rows * most], grad[nf4_few_rows * step];
    std::fill(ordered, ordered + p.rows * cols, 0.0f);
    for (int64_t row = 0; row < p.from; row += step) {
      const int64_t rows = std::min(step, p.from - row);
      load(p.x.at(0, row), p.rows, rows, grad, step);
      add(p.weight, grad, step, p.rows, row, row + rows, col, cols, ordered);
    }
    reorder(ordered, p.rows, cols, sums, most);
    nf4_finish_few_rows(p, col, cols, sums, most);
  });
}

}  // namespace

void nf4_finish_few_rows(const nf4_problem& p, int64_t begin, int64_t count, float* sums,
                         int64_t ld) {
  add_update(p, begin, count, sums, ld);
  epilogue how = p.how;
  if (how.bias.data != nullptr) how.bias = how.bias.at(0, begin);
  RUDA_HOST(store_block)(sums, ld, p.rows, count, p.y.at(0, begin), how);
}

bool nf4_run_few_rows(const nf4_problem& p, bool forward) {
  // Twice as many rows as the kernels take are still faster in two halves than through panels.
  if (p.rows > 2 * nf4_few_rows || p.from == 0) return false;
  if (p.weight.cols % nf4_chunk != 0 || p.weight.block_size % nf4_chunk != 0) return false;
  const int64_t rows = p.rows > nf4_few_rows ? (p.rows + 1) / 2 : p.rows;
  // A float32 copy of the few rows must fit the scratch that even one thread has.
  if (forward && rows * p.from > p.budget) return false;
  for (int64_t row = 0; row < p.rows; row += rows) {
    nf4_problem part = p;
    part.rows = std::min(rows, p.rows - row);
    part.x = p.x.at(row, 0);
    part.y = p.y.at(row, 0);
    if (p.rank > 0) part.update_x = p.update_x.at(row, 0);
    forward ? run_forward(part) : run_backward(part);
  }
  return true;
}

}  // namespace ruda::blas
