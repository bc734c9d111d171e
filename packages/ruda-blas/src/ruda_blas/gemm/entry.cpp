/* "gemm.matmul" and "gemm.product": checks, choice of path and launch. */
#include "../native/blocked.hpp"
#include "../native/packed.hpp"
#include "device.hpp"
#include "few_rows.hpp"

namespace ruda {
namespace {

using blas::gemm_problem;
using blas::layout;
using blas::matrix;

/* Every operand and the result are float32 in a form BLAS reads: no copy at all. */
struct direct_form {
  layout a, b;
};

bool is_direct(const gemm_problem& p, direct_form* form) {
  layout c{};
  return p.k > 0 && blas::blas_layout(p.c, p.m, p.n, &c) && !c.transposed &&
         blas::blas_layout(p.a, p.m, p.k, &form->a) && blas::blas_layout(p.b, p.k, p.n, &form->b);
}

/* Tiles of the result: near squares, because each packs its operands anew; at least a few, so that
 * threads can share; chosen by the shape alone, so that the bits do not depend on the threads. */
void choose_tile(const gemm_problem& p, int64_t* tile_m, int64_t* tile_n) {
  constexpr int64_t wanted = 8, least_work = 4'000'000, most_work = 512'000'000;
  int64_t rows = std::min<int64_t>(p.m, 512), cols = std::min<int64_t>(p.n, 2048);
  for (;;) {
    const int64_t tiles =
        p.batches * blas::ceil_div(p.m, rows) * blas::ceil_div(p.n, cols);
    // A long sum must not make the tiles small: each value would be packed for a few products only.
    const int64_t work = 2 * rows * cols * std::min<int64_t>(p.k, 8192);
    if (work <= most_work && (tiles >= wanted || work <= least_work)) break;
    if (cols > 64 && cols >= rows) {
      cols = blas::ceil_div(blas::ceil_div(cols, 2), 16) * 16;
    } else if (rows > 32) {
      rows = blas::ceil_div(blas::ceil_div(rows, 2), 8) * 8;
    } else if (cols > 64) {
      cols = blas::ceil_div(blas::ceil_div(cols, 2), 16) * 16;
    } else {
      break;
    }
  }
  *tile_m = rows;
  *tile_n = cols;
}

void run_direct(const gemm_problem& p, const direct_form& form) {
  int64_t tile_m, tile_n;
  choose_tile(p, &tile_m, &tile_n);
  const int64_t m_tiles = blas::ceil_div(p.m, tile_m), n_tiles = blas::ceil_div(p.n, tile_n);
  const int64_t per_batch = m_tiles * n_tiles;
  const int64_t work = 2 * tile_m * tile_n * p.k;
  const auto add_bias = RUDA_HOST(store_block);
  parallel_for(0, p.batches * per_batch, grain_for(work, 500'000),
               [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / per_batch;
      const int64_t m0 = item % per_batch / n_tiles * tile_m, n0 = item % n_tiles * tile_n;
      const int64_t rows = std::min(tile_m, p.m - m0), cols = std::min(tile_n, p.n - n0);
      matrix c = p.c_of(batch).at(m0, n0);
      const int64_t ldc = p.m == 1 ? std::max<int64_t>(p.n, 1) : p.c.row_stride;
      blas::sgemm(form.a, form.b, rows, cols, p.k, p.how.alpha, p.a_of(batch).at(m0, 0).floats(),
                  p.b_of(batch).at(0, n0).floats(), p.how.beta, c.floats(), ldc);
      if (p.how.bias.data == nullptr) continue;
      blas::epilogue bias;
      bias.bias = p.how.bias.at(m0, n0);
      add_bias(c.floats(), ldc, rows, cols, c, bias);
    }
  });
}

/* Panels of both operands, in any storage type and strides, and our own tile product. */
void run_panels(const gemm_problem& p) {
  blas::packed_problem work;
  work.m = p.m;
  work.n = p.n;
  work.batches = p.batches;
  const auto pack = RUDA_HOST(pack_dense_columns);
  work.parts[0] = {p.k, p.a,
                   [&p, pack](int64_t batch, int64_t k0, int64_t count, int64_t n0, int64_t cols,
                              blas::panels to) { pack(p.b_of(batch).at(k0, n0), count, cols, to); }};
  if (p.batches == 1) work.parts[0].b = p.b;
  work.c = p.c;
  work.how = p.how;
  work.offsets = [&p](int64_t batch, int64_t* a, int64_t* c) {
    int64_t b;
    p.offsets(batch, a, &b, c);
  };
  blas::run_packed(work);
}

void run_blocked(const gemm_problem& p) {
  constexpr int64_t budget = 400'000;  // floats of scratch for one thread
  blas::blocked_product work{};
  work.batches = p.batches;
  work.m = p.m;
  work.n = p.n;
  work.k = p.k;
  work.how = p.how;
  work.copy_a = !blas::blas_layout(p.a, p.m, p.k, &work.a_layout);
  layout c{};
  work.copy_c = p.how.beta != 0.0f || !blas::blas_layout(p.c, p.m, p.n, &c) || c.transposed;
  work.plan = blas::plan_blocks(p.m, p.n, p.k, p.batches, budget, work.copy_a, work.copy_c, 64);
  const auto load = RUDA_HOST(load_block);
  const bool k_is_contiguous = p.b.row_stride == 1;
  blas::run_blocked(
      work, [&](int64_t batch) { return p.a_of(batch); },
      [&](int64_t batch) { return p.c_of(batch); },
      [&](int64_t batch, int64_t k0, int64_t slice, int64_t n0, int64_t cols, float* panel) {
        const matrix b = p.b_of(batch).at(k0, n0);
        if (k_is_contiguous) {
          load(b.transposed(), cols, slice, panel, slice);
          return layout{true, slice};
        }
        load(b, slice, cols, panel, cols);
        return layout{false, cols};
      });
}

/* Where our own panels beat the library: it copes badly with short sums into a large result, packs
 * what is read once only (the factors of a low-rank update) and every batch of small matrices twice over;
 * and for other types than float32 we pack as fast as we can read, where it reads what we have
 * converted. */
bool panels_are_better(const gemm_problem& p, bool direct) {
  if (!blas::prefer_packed()) return false;
  constexpr int64_t few = 48, small_batch = 8'000'000;
  if (p.k <= 32 && p.m * p.n > 100'000) return true;
  if (direct && (p.n <= few || (p.m <= few && p.b.col_stride == 1))) return true;
  if (direct && p.batches > 1 && p.m * p.n * p.k <= small_batch) return true;
  return !direct && p.n * p.k >= 1 << 20;
}

void run_on_host(gemm_problem p, int64_t strategy) {
  if (p.batches == 0 || p.m == 0 || p.n == 0) return;
  if (p.how.alpha == 0.0f) p.k = 0;  // as in BLAS: the product is not computed
  const bool automatic = strategy == GEMM_AUTO;
  if (p.c.col_stride != 1 && p.n > 1 && (p.c.row_stride == 1 || p.m == 1)) blas::transpose(&p);
  if (automatic && p.n <= blas::few_rows && p.m > p.n) blas::transpose(&p);
  if (automatic && blas::run_few_rows(p)) return;
  direct_form form{};
  const bool direct = is_direct(p, &form);
  if (strategy == GEMM_TILED || (automatic && panels_are_better(p, direct))) {
    run_panels(p);
  } else if (direct) {
    run_direct(p, form);
  } else {
    run_blocked(p);
  }
}

int32_t multiply(const gemm_args& args, bool one_dtype, const char* operation, ruda_error* error) {
  return guard(operation, error, [&]() -> int32_t {
    RUDA_CHECK(args.strategy >= GEMM_AUTO && args.strategy <= GEMM_TILED, error, RUDA_ERROR_VALUE,
               "[%s] strategy: got %lld, wanted 0 (auto), 1 (library) or 2 (tiled)", operation,
               static_cast<long long>(args.strategy));
    RUDA_TRY(blas::check_product(args, one_dtype, operation, error));
    if (on_device(*args.out)) return gemm_product_cuda(args, operation, error);
    run_on_host(blas::problem_of(args), args.strategy);
    return RUDA_OK;
  });
}

int32_t matmul(const void* raw, ruda_error* error) {
  return multiply(*static_cast<const gemm_args*>(raw), true, "gemm.matmul", error);
}

int32_t product(const void* raw, ruda_error* error) {
  return multiply(*static_cast<const gemm_args*>(raw), false, "gemm.product", error);
}

}  // namespace

int32_t register_gemm(ruda_error* error) {
  RUDA_TRY(register_kernel("gemm.matmul", "ruda-blas", gemm_args_layout, matmul, error));
  return register_kernel("gemm.product", "ruda-blas", gemm_args_layout, product, error);
}

}  // namespace ruda
