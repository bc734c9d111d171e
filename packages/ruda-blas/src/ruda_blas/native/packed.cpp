/* Blocking of the packed products, and their threads. */
#include "packed.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <ruda/entry.hpp>

namespace ruda::blas {
namespace {

constexpr int64_t rows_step = 6, cols_step = 16, k_step = 8;
constexpr int64_t most_cols = 96;    /* of a block: its panel stays in the L2 cache */
constexpr int64_t most_rows = 1020;   /* packed at a time */
constexpr int64_t least_panel = 4096; /* floats of a panel that lie on the stack */
constexpr int64_t few = 48;           /* rows or columns for which the other operand is not packed */
constexpr int64_t small_work = 8'000'000; /* multiply-adds of a batch that one block does alone */

int64_t ceil_div(int64_t count, int64_t part) { return (count + part - 1) / part; }
int64_t round_up(int64_t count, int64_t part) { return ceil_div(count, part) * part; }

struct blocking {
  int64_t k;          /* of all parts */
  int64_t slice;      /* of k; the only number here that the bits of a result depend on */
  int64_t rows, cols; /* of a block */
  int64_t chunk;      /* rows that are packed beforehand; 0: each block packs its own */
  bool read_a, read_b; /* where they lie, without packing */
  bool sum_in_place;   /* the result's memory holds the sums */
  int64_t own_floats; /* scratch of one thread */
};

std::atomic<int32_t> chosen_engine{0};

decltype(&wide::multiply_panels) panel_product() {
#if defined(__x86_64__)
  static const bool avx512 = api()->cpu_level() >= 1 && __builtin_cpu_supports("avx512f");
  if (avx512 && chosen_engine.load(std::memory_order_relaxed) != 3) return wide::multiply_panels;
#endif
  return RUDA_HOST(multiply_panels);
}

/* Blocks of [rows, n] that keep `threads` equally busy, without packing b too often: packing a column
 * of b costs about as much as multiplying it with eight rows. */
void choose_block(int64_t rows, int64_t n, int64_t most, int64_t threads, blocking* plan) {
  constexpr int64_t least_rows = 48, least_cols = 32;
  double least = 1e30;
  for (int64_t cols = std::min(least_cols, most); cols <= most; cols += cols_step)
    for (int64_t parts = 1; parts <= 4 * threads; ++parts) {
      const int64_t height = std::min(rows, round_up(ceil_div(rows, parts), rows_step));
      if (parts > 1 && height < least_rows) break;
      const int64_t blocks = ceil_div(n, cols) * ceil_div(rows, height);
      const int64_t rounds = ceil_div(blocks, threads);
      // Narrow blocks read the rows more often; few blocks leave one thread waiting for a slower one.
      const double each = static_cast<double>(cols + 1) * static_cast<double>(height + 8);
      const double wait = threads > 1 ? 1.0 + 0.1 / static_cast<double>(rounds) : 1.0;
      const double cost = static_cast<double>(rounds) * each * wait;
      if (cost > least) continue;
      least = cost;
      plan->rows = height;
      plan->cols = cols;
    }
}

class product {
 public:
  product(const packed_problem& problem, blocking plan) : p(problem), plan(plan) {}

  void run() {
    const int64_t threads = api()->num_threads();
    const scratch<float> own(threads * plan.own_floats);
    memory_ = own.get();
    if (plan.chunk == 0) {
      run_blocks(0, p.batches, 0, p.m);
      return;
    }
    const scratch<float> rows(round_up(plan.chunk, rows_step) * plan.k);
    shared_ = rows.get();
    for (int64_t batch = 0; batch < p.batches; ++batch)
      for (int64_t m0 = 0; m0 < p.m; m0 += plan.chunk) {
        const int64_t count = std::min(plan.chunk, p.m - m0);
        pack_shared(batch, m0, count);
        run_blocks(batch, batch + 1, m0, count);
      }
  }

 private:
  matrix a_of(int64_t batch, int part) const {
    matrix a = p.parts[part].a;
    if (p.batches > 1 && part == 0) a.data += offset(batch).first * a.item;
    return a;
  }
  matrix c_of(int64_t batch) const {
    matrix c = p.c;
    if (p.batches > 1) c.data += offset(batch).second * c.item;
    return c;
  }
  std::pair<int64_t, int64_t> offset(int64_t batch) const {
    int64_t a = 0, c = 0;
    p.offsets(batch, &a, &c);
    return {a, c};
  }

  /* fn(part, first step in the part, steps, steps before it) for what a slice has of each part. */
  template <class F>
  void each_part(int64_t k0, int64_t slice, F&& fn) const {
    const int64_t first = p.parts[0].k;
    const int64_t left = std::clamp<int64_t>(first - k0, 0, slice);
    if (left > 0) fn(0, k0, left, int64_t{0});
    if (left < slice) fn(1, k0 + left - first, slice - left, left);
  }

  /* One slice of rows: panels `slice * 6` apart. */
  void pack_slice(int64_t batch, int64_t m0, int64_t rows, int64_t k0, int64_t slice,
                  float* target) const {
    const auto pack = RUDA_HOST(pack_rows);
    each_part(k0, slice, [&](int part, int64_t from, int64_t count, int64_t before) {
      pack(a_of(batch, part).at(m0, from), rows, count, target + before * rows_step,
           slice * rows_step);
    });
  }

  /* All slices of all rows: slice by slice, in each panel by panel. */
  void pack_shared(int64_t batch, int64_t m0, int64_t count) const {
    const int64_t panels = ceil_div(count, rows_step);
    parallel_for(0, panels, grain_for(rows_step * plan.k, 16384),
                 [&](int64_t begin, int64_t end, int32_t) {
      const int64_t first = begin * rows_step, rows = std::min(end * rows_step, count) - first;
      for (int64_t k0 = 0; k0 < plan.k; k0 += plan.slice) {
        const int64_t slice = std::min(plan.slice, plan.k - k0);
        pack_slice(batch, m0 + first, rows, k0, slice,
                   shared_ + (k0 * panels + begin * slice) * rows_step);
      }
    });
  }

  /* Every block of rows [m0, m0 + rows) of some batches. */
  void run_blocks(int64_t first_batch, int64_t last_batch, int64_t m0, int64_t rows) const {
    const int64_t m_blocks = ceil_div(rows, plan.rows), n_blocks = ceil_div(p.n, plan.cols);
    const int64_t each = m_blocks * n_blocks;
    const int64_t work = plan.rows * std::min(plan.cols, p.n) * std::max<int64_t>(plan.k, 1);
    parallel_for(first_batch * each, last_batch * each, grain_for(work, 250'000),
                 [&](int64_t begin, int64_t end, int32_t worker) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item % each / n_blocks * plan.rows, col = item % n_blocks * plan.cols;
        run_block({item / each, m0 + row, std::min(plan.rows, rows - row), col,
                   std::min(plan.cols, p.n - col), row, round_up(rows, rows_step)},
                  worker);
      }
    });
  }

  struct block {
    int64_t batch, m0, rows, n0, cols;
    int64_t packed_row, packed_height; /* where it begins in the packed rows, and how many those are */
  };

  void run_block(const block& at, int32_t worker) const {
    float small[least_panel];
    float* own = memory_ + worker * plan.own_floats;
    const auto take = [&](int64_t count) {
      float* taken = own;
      own += count;
      return taken;
    };
    const int64_t width = round_up(plan.cols, cols_step);
    const int64_t panel = plan.read_b ? 0 : width * plan.slice;
    float* right = panel <= least_panel ? small : take(panel);
    const bool packs_rows = plan.chunk == 0 && !plan.read_a;
    float* left = packs_rows ? take(round_up(plan.rows, rows_step) * plan.slice) : nullptr;
    matrix c = c_of(at.batch).at(at.m0, at.n0);
    float* sum = plan.sum_in_place ? c.floats() : take(0);
    const int64_t ld = plan.sum_in_place ? c.row_stride : width;
    if (plan.k == 0)
      for (int64_t r = 0; r < at.rows; ++r) std::memset(sum + r * ld, 0, at.cols * sizeof(float));
    for (int64_t k0 = 0; k0 < plan.k; k0 += plan.slice) {
      const int64_t slice = std::min(plan.slice, plan.k - k0);
      if (!plan.read_b)
        each_part(k0, slice, [&](int part, int64_t from, int64_t count, int64_t before) {
          p.parts[part].pack_b(at.batch, from, count, at.n0, at.cols,
                               {right + before * cols_step, slice * cols_step});
        });
      if (packs_rows) pack_slice(at.batch, at.m0, at.rows, k0, slice, left);
      const float* packed =
          plan.chunk == 0 ? left : shared_ + k0 * at.packed_height + at.packed_row * slice;
      multiply_slice(at, k0, slice, packed, right, sum, ld);
    }
    epilogue how = p.how;
    if (how.bias.data != nullptr) how.bias = how.bias.at(at.m0, at.n0);
    if (!plan.sum_in_place || !how.plain())
      RUDA_HOST(store_block)(sum, ld, at.rows, at.cols, c, how);
  }

  void multiply_slice(const block& at, int64_t k0, int64_t slice, const float* packed,
                      const float* right, float* sum, int64_t ld) const {
    const int64_t a_panel = slice * rows_step, b_panel = slice * cols_step;
    if (!plan.read_a && !plan.read_b) {
      multiply_(at.rows, at.cols, slice, packed, a_panel, right, b_panel, sum, ld, k0 > 0);
      return;
    }
    operand_panels rows{packed, 1, rows_step, a_panel, true};
    operand_panels cols{right, 1, cols_step, b_panel, true};
    if (plan.read_a) {
      const matrix a = a_of(at.batch, 0).at(at.m0, k0);
      rows = {a.floats(), a.row_stride, a.col_stride, rows_step * a.row_stride, false};
    }
    if (plan.read_b) {
      const matrix b = p.parts[0].b.at(k0, at.n0);
      cols = {b.floats(), 1, b.row_stride, cols_step, false};
    }
    RUDA_HOST(multiply_operands)(at.rows, at.cols, slice, rows, cols, sum, ld, k0 > 0);
  }

  const packed_problem& p;
  const blocking plan;
  const decltype(&wide::multiply_panels) multiply_ = panel_product();
  float* memory_ = nullptr;
  float* shared_ = nullptr;
};

blocking choose_blocking(const packed_problem& p) {
  blocking plan{};
  plan.k = p.parts[0].k + p.parts[1].k;
  const int64_t panel = std::max(p.panel_floats, least_panel);
  const int64_t n = round_up(p.n, cols_step);
  // Equal slices; a panel that must be small keeps at least 16 columns.
  const int64_t deepest = std::clamp(panel / cols_step / k_step * k_step, k_step, most_slice);
  plan.slice = plan.k <= deepest
                   ? plan.k
                   : std::min(deepest, round_up(ceil_div(plan.k, ceil_div(plan.k, deepest)), 64));
  const int64_t widest =
      std::max(cols_step, panel / std::max<int64_t>(plan.slice, 1) / cols_step * cols_step);
  const int64_t work = p.m * p.n * plan.k;
  const matrix& a = p.parts[0].a;
  const matrix& b = p.parts[0].b;
  const bool single = plan.k > 0 && p.parts[1].k == 0;
  plan.read_a = single && a.dtype == RUDA_FLOAT32 && p.n <= few;
  plan.read_b = single && b.data != nullptr && b.dtype == RUDA_FLOAT32 && b.col_stride == 1 &&
                p.m <= few;
  const bool shared = !plan.read_a && (p.batches == 1 ? n > cols_step : work > small_work);
  if (p.batches == 1 && plan.read_a) {
    choose_block(p.m, n, std::min(widest, n), api()->num_threads(), &plan);
  } else if (shared) {
    const int64_t fitting = p.row_floats / std::max<int64_t>(plan.k, 1) / rows_step * rows_step;
    const int64_t most = std::clamp(fitting, rows_step, most_rows);
    plan.chunk = std::min(p.m, round_up(ceil_div(p.m, ceil_div(p.m, most)), rows_step));
    choose_block(plan.chunk, n, std::min({widest, n, most_cols}), api()->num_threads(), &plan);
  } else {
    plan.cols = std::min({n, widest, 2 * most_cols});
    plan.rows = std::min<int64_t>(p.m, 192);
    // A few blocks at least, of some size each.
    while (p.batches * ceil_div(p.m, plan.rows) < 8 && plan.rows > 2 * rows_step &&
           plan.rows * plan.cols * plan.k > 500'000)
      plan.rows = round_up(plan.rows / 2, rows_step);
  }
  plan.sum_in_place = p.c.dtype == RUDA_FLOAT32 && (p.c.col_stride == 1 || p.n == 1) &&
                      p.how.beta == 0.0f;
  const int64_t width = round_up(plan.cols, cols_step), height = round_up(plan.rows, rows_step);
  const int64_t right = plan.read_b ? 0 : width * plan.slice;
  plan.own_floats = (right > least_panel ? right : 0) +
                    (shared || plan.read_a ? 0 : height * plan.slice) +
                    (plan.sum_in_place ? 0 : height * width);
  return plan;
}

}  // namespace

void run_packed(const packed_problem& problem) {
  if (problem.m == 0 || problem.n == 0 || problem.batches == 0) return;
  product(problem, choose_blocking(problem)).run();
}

pack_columns dense_columns(const matrix& b) {
  return [b](int64_t, int64_t k0, int64_t count, int64_t n0, int64_t cols, panels to) {
    RUDA_HOST(pack_dense_columns)(b.at(k0, n0), count, cols, to);
  };
}

bool prefer_packed() {
  const int32_t engine = chosen_engine.load(std::memory_order_relaxed);
  return engine == 0 ? api()->cpu_level() >= 1 : engine >= 2;
}

void choose_engine(int32_t engine) { chosen_engine.store(engine); }

}  // namespace ruda::blas
