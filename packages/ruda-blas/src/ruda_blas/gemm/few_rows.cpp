#include "few_rows.hpp"

#include <algorithm>

#include "../native/blocked.hpp"

namespace ruda::blas {
namespace {

/* Columns [n0, n0 + count) of a batch's result. */
void write(const gemm_problem& p, int64_t batch, int64_t n0, int64_t count, const float* sums,
           int64_t ld) {
  epilogue how = p.how;
  if (how.bias.data != nullptr) how.bias = how.bias.at(0, n0);
  RUDA_HOST(store_block)(sums, ld, p.m, count, p.c_of(batch).at(0, n0), how);
}

/* Rows of a as float32 that are contiguous over k: in place where they are, else through `copy`. */
struct left_rows {
  const float* data;
  int64_t ld;
};

bool in_place(const gemm_problem& p) {
  return p.a.dtype == RUDA_FLOAT32 && (p.a.col_stride == 1 || p.k == 1);
}

left_rows rows_of(const gemm_problem& p, const matrix& a, int64_t k, float* copy) {
  if (in_place(p)) return {a.floats(), a.row_stride};
  RUDA_HOST(load_block)(a, p.m, k, copy, k);
  return {copy, k};
}

/* Columns of b contiguous over k (a weight [N, K]): a scalar product for each column. */
void run_dots(const gemm_problem& p) {
  const auto dot = RUDA_HOST(dot_rows);
  constexpr int64_t cols = 64;
  const int64_t n_parts = ceil_div(p.n, cols);
  const scratch<float> copies(in_place(p) ? 0 : api()->num_threads() * p.m * p.k);
  parallel_for(0, p.batches * n_parts, grain_for(cols * p.k, 32768),
               [&](int64_t begin, int64_t end, int32_t worker) {
    left_rows a{};
    int64_t loaded = -1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / n_parts, n0 = item % n_parts * cols;
      const int64_t count = std::min(cols, p.n - n0);
      if (loaded != batch) a = rows_of(p, p.a_of(batch), p.k, copies.get() + worker * p.m * p.k);
      loaded = batch;
      const matrix b = p.b_of(batch).at(0, n0).transposed();  // [n, k]
      float sums[few_rows * cols];
      dot(a.data, a.ld, p.m, b, p.k, 0, count, sums, cols);
      write(p, batch, n0, count, sums, cols);
    }
  });
}

/* Rows of b contiguous: sums of its rows, in parts of the columns and, where those are too few to
 * share, of k. Parts of k have sums of their own, added in their order. */
struct row_sums {
  static constexpr int64_t widest = 4096; /* floats of sums of a part, rows together */
  static constexpr int64_t most_parts = 16;
  const gemm_problem& p;
  int64_t width, n_parts, depth, k_parts;

  explicit row_sums(const gemm_problem& problem) : p(problem) {
    n_parts = ceil_div(p.n, widest / p.m);
    width = std::min(ceil_div(ceil_div(p.n, n_parts), 64) * 64, widest / p.m / 64 * 64);
    n_parts = ceil_div(p.n, width);
    const int64_t wanted =
        std::clamp<int64_t>(p.batches * p.n * p.k / 65536, 1, most_parts) / (p.batches * n_parts);
    depth = ceil_div(ceil_div(p.k, std::max<int64_t>(wanted, 1)), 8) * 8;
    k_parts = ceil_div(p.k, depth);
  }

  void add(int64_t batch, int64_t k0, int64_t n0, int64_t count, float* sums, int64_t ld) const {
    constexpr int64_t step = 256;
    const auto add_part = RUDA_HOST(add_rows);
    const matrix a = p.a_of(batch), b = p.b_of(batch);
    float copy[few_rows * step];
    for (int64_t m = 0; m < p.m; ++m) std::fill(sums + m * ld, sums + m * ld + count, 0.0f);
    const int64_t last = std::min(k0 + depth, p.k);
    for (int64_t at = k0; at < last; at += step) {
      const int64_t steps = std::min(step, last - at);
      const left_rows left = rows_of(p, a.at(0, at), steps, copy);
      add_part(left.data, left.ld, p.m, b.at(at, n0), steps, count, sums, ld);
    }
  }

  void run() const {
    const int64_t size = p.m * p.n;
    const scratch<float> parts(k_parts > 1 ? p.batches * k_parts * size : 0);
    const int64_t per_batch = n_parts * k_parts;
    parallel_for(0, p.batches * per_batch, grain_for(width * depth, 32768),
                 [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t batch = item / per_batch, part = item % per_batch / n_parts;
        const int64_t n0 = item % n_parts * width, count = std::min(width, p.n - n0);
        if (k_parts > 1) {
          add(batch, part * depth, n0, count, parts.get() + (batch * k_parts + part) * size + n0, p.n);
          continue;
        }
        float sums[widest];
        add(batch, 0, n0, count, sums, width);
        write(p, batch, n0, count, sums, width);
      }
    });
    if (k_parts == 1) return;
    constexpr int64_t step = 1024;
    const int64_t steps = ceil_div(p.n, step);
    parallel_for(0, p.batches * steps, grain_for(step * p.m * k_parts, 32768),
                 [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t batch = item / steps, n0 = item % steps * step;
        const int64_t count = std::min(step, p.n - n0);
        const float* first = parts.get() + batch * k_parts * size + n0;
        float sums[few_rows * step];
        for (int64_t m = 0; m < p.m; ++m) {
          float* sum = sums + m * step;
          std::copy(first + m * p.n, first + m * p.n + count, sum);
          for (int64_t part = 1; part < k_parts; ++part) {
            const float* more = first + part * size + m * p.n;
            for (int64_t j = 0; j < count; ++j) sum[j] += more[j];
          }
        }
        write(p, batch, n0, count, sums, step);
      }
    });
  }
};

}  // namespace

bool run_few_rows(const gemm_problem& p) {
  if (p.m > few_rows || p.k == 0) return false;
  if (p.b.row_stride == 1 || p.k == 1) {
    run_dots(p);
  } else if (p.b.col_stride == 1 || p.n == 1) {
    row_sums(p).run();
  } else {
    return false;
  }
  return true;
}

}  // namespace ruda::blas
