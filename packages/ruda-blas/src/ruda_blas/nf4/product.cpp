/* "nf4.matmul" and "nf4.input_grad": checks, choice of path and launch. */
#include "../native/blocked.hpp"
#include "checks.hpp"
#include "device.hpp"
#include "gemv.hpp"
#include "panels.hpp"

namespace ruda {
namespace {

using blas::layout;
using blas::matrix;

constexpr int64_t few_rows = 4; /* where blocks do not suit nf4_run_few_rows */

using product = blas::nf4_problem;

/* Both operands of the update or neither. */
int32_t read_update(const nf4_matmul_args& args, const char* operation, product* p,
                    ruda_error* error) {
  RUDA_CHECK((args.update_x == nullptr) == (args.update_w == nullptr), error, RUDA_ERROR_VALUE,
             "[%s] update_x and update_w: got only %s, wanted both or neither", operation,
             args.update_x != nullptr ? "update_x" : "update_w");
  if (args.update_x == nullptr) return RUDA_OK;
  RUDA_TRY(check_operand(args.update_x, operation, "update_x", error));
  RUDA_TRY(check_operand(args.update_w, operation, "update_w", error));
  RUDA_CHECK(args.update_x->ndim == 2 && args.update_x->sizes[0] == p->rows, error,
             RUDA_ERROR_VALUE, "[%s] update_x: got shape %s, wanted [M, r] = [%lld, r]", operation,
             shape_text(*args.update_x).c_str(), static_cast<long long>(p->rows));
  p->rank = args.update_x->sizes[1];
  RUDA_TRY(check_shape(args.update_w, {p->rank, p->to}, operation, "update_w", error));
  RUDA_TRY(check_no_overlap(*args.y, args.update_x, operation, "update_x", error));
  RUDA_TRY(check_no_overlap(*args.y, args.update_w, operation, "update_w", error));
  p->update_x = matrix_of(*args.update_x);
  p->update_w = matrix_of(*args.update_w);
  return RUDA_OK;
}

int32_t read_product(const nf4_matmul_args& args, bool forward, const char* operation, product* p,
                     ruda_error* error) {
  RUDA_TRY(check_operand(args.x, operation, "x", error));
  RUDA_TRY(check_operand(args.y, operation, "y", error));
  RUDA_TRY(check_quantized(args.packed, args.scales, args.codebook, args.out_features,
                           args.in_features, args.block_size, operation, &p->weight, error));
  RUDA_CHECK(args.tile_rows > 0, error, RUDA_ERROR_VALUE,
             "[%s] tile_rows: got %lld, wanted a positive number", operation,
             static_cast<long long>(args.tile_rows));
  p->from = forward ? args.in_features : args.out_features;
  p->to = forward ? args.out_features : args.in_features;
  RUDA_CHECK(args.x->ndim == 2 && args.x->sizes[1] == p->from, error, RUDA_ERROR_VALUE,
             "[%s] x: got shape %s, wanted [M, %s] = [M, %lld]", operation,
             shape_text(*args.x).c_str(), forward ? "in_features" : "out_features",
             static_cast<long long>(p->from));
  p->rows = args.x->sizes[0];
  RUDA_TRY(check_shape(args.y, {p->rows, p->to}, operation, "y", error));
  RUDA_TRY(check_result_memory(*args.y, operation, error));
  RUDA_CHECK(forward || args.bias == nullptr, error, RUDA_ERROR_VALUE,
             "[%s] bias: got a tensor, wanted none: the input gradient has no bias", operation);
  if (args.bias != nullptr) {
    RUDA_TRY(check_operand(args.bias, operation, "bias", error));
    RUDA_TRY(check_shape(args.bias, {p->to}, operation, "bias", error));
  }
  RUDA_TRY(check_no_overlap(*args.y, args.x, operation, "x", error));
  RUDA_TRY(check_no_overlap(*args.y, args.bias, operation, "bias", error));
  for (const ruda_view* part : {args.packed, args.scales, args.codebook})
    RUDA_TRY(check_no_overlap(*args.y, part, operation, "the weight", error));
  RUDA_TRY(read_update(args, operation, p, error));
  p->x = matrix_of(*args.x);
  p->y = matrix_of(*args.y);
  p->how.bias = row_of(args.bias);
  const int64_t width = std::max<int64_t>(args.in_features, 1);
  p->budget = std::min(args.tile_rows, (int64_t{1} << 40) / width) * width;
  return RUDA_OK;
}

/* One row or a few: each weight row is decoded once and meets all of them while in the L1 cache. */
void run_few_rows(const product& p) {
  const auto load = RUDA_HOST(load_block);
  const auto dot = RUDA_HOST(nf4_dot_rows);
  const bool in_place = p.x.dtype == RUDA_FLOAT32 && (p.x.col_stride == 1 || p.from == 1);
  const scratch<float> copy(in_place ? 0 : p.rows * p.from);
  if (!in_place) load(p.x, p.rows, p.from, copy.get(), p.from);
  const float* x = in_place ? p.x.floats() : copy.get();
  const int64_t ldx = in_place ? p.x.row_stride : p.from;
  constexpr int64_t most = 64;
  const int64_t grain = std::min(most, grain_for(p.from, 32768));
  parallel_for(0, p.to, grain, [&](int64_t begin, int64_t end, int32_t) {
    float sums[few_rows * most];
    dot(p.weight, x, ldx, p.rows, begin, end, sums, most);
    blas::nf4_finish_few_rows(p, begin, end - begin, sums, most);
  });
}

void run_tiles(const product& p, bool forward) {
  blas::blocked_product work{};
  work.batches = 1;
  work.m = p.rows;
  work.n = p.to;
  work.k = p.from;
  work.how = p.how;
  work.update_k = p.rank;
  work.update_a = p.update_x;
  work.update_b = p.update_w;
  work.copy_a = !blas::blas_layout(p.x, p.rows, p.from, &work.a_layout) ||
                (p.rank > 0 &&
                 !blas::blas_layout(p.update_x, p.rows, p.rank, &work.update_a_layout));
  layout c{};
  work.copy_c = !blas::blas_layout(p.y, p.rows, p.to, &c) || c.transposed;
  work.plan = blas::plan_blocks(p.rows, p.to, p.from, 1, p.budget, work.copy_a, work.copy_c, 64);
  const auto decode = RUDA_HOST(nf4_decode_panel);
  blas::run_blocked(
      work, [&](int64_t) { return p.x; }, [&](int64_t) { return p.y; },
      [&](int64_t, int64_t k0, int64_t slice, int64_t n0, int64_t cols, float* panel) {
        if (forward) {
          decode(p.weight, n0, cols, k0, slice, panel, slice);
          return layout{true, slice};
        }
        decode(p.weight, k0, slice, n0, cols, panel, cols);
        return layout{false, cols};
      });
}

/* The weight is decoded straight into the panels that the product reads. */
void run_panels(const product& p, bool forward) {
  blas::packed_problem work;
  work.m = p.rows;
  work.n = p.to;
  work.parts[0].k = p.from;
  work.parts[0].a = p.x;
  work.parts[0].pack_b = [&p, forward](int64_t, int64_t k0, int64_t count, int64_t n0, int64_t cols,
                                       blas::panels to) {
    if (forward) {
      RUDA_HOST(nf4_pack_transposed)(p.weight, k0, count, n0, cols, to);
    } else {
      RUDA_HOST(nf4_pack_straight)(p.weight, k0, count, n0, cols, to);
    }
  };
  if (p.rank > 0) work.parts[1] = {p.rank, p.update_x, blas::dense_columns(p.update_w)};
  work.c = p.y;
  work.how = p.how;
  work.panel_floats = p.budget;
  blas::run_packed(work);
}

int32_t multiply(const void* raw, bool forward, const char* operation, ruda_error* error) {
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const nf4_matmul_args*>(raw);
    product p{};
    RUDA_TRY(read_product(args, forward, operation, &p, error));
    if (p.rows == 0 || p.to == 0) return RUDA_OK;
    if (on_device(*args.y)) return nf4_product_cuda(args, forward, operation, error);
    if (blas::nf4_run_few_rows(p, forward)) return RUDA_OK;
    // A float32 copy of the few rows must fit the scratch that even one thread has.
    if (forward && p.rows <= few_rows && p.from > 0 && p.rows * p.from <= p.budget) {
      run_few_rows(p);
    } else if (blas::prefer_packed()) {
      run_panels(p, forward);
    } else {
      run_tiles(p, forward);
    }
    return RUDA_OK;
  });
}

int32_t matmul(const void* raw, ruda_error* error) {
  return multiply(raw, true, "nf4.matmul", error);
}

int32_t input_grad(const void* raw, ruda_error* error) {
  return multiply(raw, false, "nf4.input_grad", error);
}

}  // namespace

int32_t register_nf4_products(ruda_error* error) {
  RUDA_TRY(register_kernel("nf4.matmul", "ruda-blas", nf4_matmul_args_layout, matmul, error));
  return register_kernel("nf4.input_grad", "ruda-blas", nf4_matmul_args_layout, input_grad, error);
}

}  // namespace ruda
