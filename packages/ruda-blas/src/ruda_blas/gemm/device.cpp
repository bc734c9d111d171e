/* The dense product's kernels on the cuda target; the choices are those of launch.py, which
 * tests/test_device_launches.py compares. */
#include "device.hpp"

#include <algorithm>

#include <ruda/device.hpp>

#include "plan.hpp"

namespace ruda {
namespace {

using blas::gemm_problem;

device_kernel gemm_kernel{"gemm.matmul"};
device_kernel gemm_columns_kernel{"gemm.matmul_columns"};
device_kernel sum_kernel{"gemm.sum_splits"};

struct tile {
  int64_t m, n, k;
  ruda_launch_options how;
};

struct tiles {
  tile few, medium, large;
};

constexpr tiles half_tiles{{16, 64, 64, {4, 3}}, {64, 64, 32, {4, 3}}, {128, 128, 32, {8, 3}}};
constexpr tiles float_tiles{{16, 64, 32, {4, 2}}, {64, 64, 16, {4, 2}}, {128, 64, 16, {8, 2}}};
constexpr int64_t many = 96;  // tiles that fill a GPU
constexpr int64_t group = 8;
constexpr int64_t sum_block = 256;
/* Kernels count rows, columns and steps in 32 bits, up to a tile or a split beyond the end. */
constexpr int64_t largest_size = (int64_t{1} << 31) - (int64_t{1} << 16);

int64_t count_tiles(int64_t m, int64_t n, const tile& of) {
  return ceil_div(m, of.m) * ceil_div(n, of.n);
}

const tile& choose_tile(int64_t m, int64_t n, int64_t batches, bool half) {
  const tiles& all = half ? half_tiles : float_tiles;
  if (m <= 16) return all.few;
  return count_tiles(m, n, all.large) * batches >= many ? all.large : all.medium;
}

/* Splits of a sum whose tiles alone leave a GPU idle: each at least 512 long. */
int64_t choose_splits(int64_t tile_count, int64_t k) {
  if (tile_count >= many) return 1;
  return std::max<int64_t>(1, std::min({ceil_div(many, tile_count), k / 512, int64_t{16}}));
}

/* One operand. The stride along an axis of one element is 0: it does not matter, and 1 would be another
 * machine code. */
struct side {
  const blas::matrix& place;
  int64_t rows, cols;

  side(const blas::matrix& operand, int64_t m, int64_t n)
      : place(operand),
        rows(m == 1 ? 0 : operand.row_stride),
        cols(n == 1 ? 0 : operand.col_stride) {}

  ruda_argument at(int64_t elements) const {
    return pointer(place.data + elements * place.item, place.dtype);
  }
};

/* Strides of a, b and out along a batch dimension. */
struct batch_dimension {
  int64_t size = 1;
  int64_t a = 0, b = 0, out = 0;
};

/* The batch dimensions, merged where memory allows it: the two innermost go into a launch's grid, each
 * index of the others is a launch. */
struct batch_plan {
  batch_dimension merged[blas::most_dims];
  int32_t count = 0;
  batch_dimension inner, outer;

  explicit batch_plan(const gemm_problem& p) {
    for (int32_t d = 0; d < p.batch_dims; ++d) {
      batch_dimension next{p.sizes[d], p.a_strides[d], p.b_strides[d], p.c_strides[d]};
      if (count > 0) {
        const batch_dimension& before = merged[count - 1];
        if (next.a * next.size == before.a && next.b * next.size == before.b &&
            next.out * next.size == before.out) {
          next.size *= before.size;
          merged[count - 1] = next;
          continue;
        }
      }
      merged[count++] = next;
    }
    if (count > 0) inner = merged[--count];
    if (count > 0) outer = merged[--count];
  }

  int64_t launches() const {
    int64_t total = 1;
    for (int32_t i = 0; i < count; ++i) total *= merged[i].size;
    return total;
  }

  /* Offsets of a launch, in elements. */
  batch_dimension offsets(int64_t launch) const {
    batch_dimension sum;
    for (int32_t i = count - 1; i >= 0; --i) {
      const int64_t index = launch % merged[i].size;
      launch /= merged[i].size;
      sum.a += index * merged[i].a;
      sum.b += index * merged[i].b;
      sum.out += index * merged[i].out;
    }
    return sum;
  }
};

struct device_product {
  const int64_t m, n, k;
  const side a, b, out;
  const ruda_view* const bias;
  const int64_t bias_n;
  const batch_plan batch;
  const double alpha, beta;

  device_product(const gemm_problem& p, const gemm_args& args)
      : m(p.m),
        n(p.n),
        k(p.how.alpha == 0.0f ? 0 : p.k),
        a(p.a, p.m, p.k),
        b(p.b, p.k, p.n),
        out(p.c, p.m, p.n),
        bias(args.bias),
        bias_n(bias == nullptr || n == 1 ? 1 : bias->strides[0]),
        batch(p),
        alpha(args.alpha),
        beta(args.beta) {}

  bool has_bias() const { return bias != nullptr; }
  bool half() const { return a.place.dtype == b.place.dtype && a.place.dtype != RUDA_FLOAT32; }
  int64_t batches() const { return batch.inner.size * batch.outer.size; }

  /* Where a launch writes. */
  struct target {
    ruda_argument place;
    int64_t split, outer, inner, rows, cols;
  };

  int32_t multiply(const batch_dimension& at, const tile& chosen, int64_t tile_count,
                   int64_t splits, const target& to, bool plain, ruda_error* error) const {
    device_kernel& kernel = a.rows == 1 ? gemm_columns_kernel : gemm_kernel;
    return kernel.launch(
        programs(tile_count, splits), chosen.how, error, a.at(at.a), b.at(at.b),
        has_bias() && !plain ? argument(bias) : to.place, to.place, integer(m), integer(n),
        integer(k), integer(batch.inner.size), integer(batch.outer.a), integer(batch.inner.a),
        integer(a.rows), integer(a.cols), integer(batch.outer.b), integer(batch.inner.b),
        integer(b.rows), integer(b.cols), integer(to.split), integer(to.outer), integer(to.inner),
        integer(to.rows), integer(to.cols), integer(bias_n), real(plain ? 1.0 : alpha),
        real(plain ? 0.0 : beta), integer(has_bias() && !plain), integer(chosen.m),
        integer(chosen.n), integer(chosen.k), integer(group), text("ieee"));
  }

  int32_t add_splits(const ruda_argument& partials, int64_t splits, int64_t split_stride,
                     const target& to, ruda_error* error) const {
    return sum_kernel.launch(programs(batches() * m, ceil_div(n, sum_block)), {}, error, partials,
                             has_bias() ? argument(bias) : to.place, to.place, integer(m),
                             integer(n), integer(batch.inner.size), integer(splits),
                             integer(split_stride), integer(to.outer), integer(to.inner),
                             integer(to.rows), integer(to.cols), integer(bias_n), real(alpha),
                             real(beta), integer(has_bias()), integer(sum_block));
  }

  int32_t check_sizes(int64_t tile_count, const char* operation, ruda_error* error) const {
    RUDA_TRY(check_device_limit(m, operation, "rows of the product", error, largest_size));
    RUDA_TRY(check_device_limit(n, operation, "columns of the product", error, largest_size));
    RUDA_TRY(check_device_limit(k, operation, "K", error, largest_size));
    return check_device_limit(tile_count, operation, "tiles of the product", error);
  }

  int32_t run(const char* operation, ruda_error* error) const {
    const tile& chosen = choose_tile(m, n, batches(), half());
    const int64_t tile_count = count_tiles(m, n, chosen) * batches();
    RUDA_TRY(check_sizes(tile_count, operation, error));
    const int64_t splits = choose_splits(tile_count, k);
    const int64_t launches = batch.launches();
    for (int64_t launch = 0; launch < launches; ++launch) {
      const batch_dimension at = batch.offsets(launch);
      const target result{out.at(at.out), 0, batch.outer.out, batch.inner.out, out.rows, out.cols};
      if (splits == 1) {
        RUDA_TRY(multiply(at, chosen, tile_count, splits, result, false, error));
        continue;
      }
      const int64_t split_stride = ceil_div(batches() * m * n, 16) * 16;
      const scratch<float> partials(splits * split_stride);
      const ruda_argument place = pointer(partials.get(), RUDA_FLOAT32);
      const target sums{place, split_stride, batch.inner.size * m * n, m * n, n, 1};
      RUDA_TRY(multiply(at, chosen, tile_count, splits, sums, true, error));
      RUDA_TRY(add_splits(place, splits, split_stride, result, error));
    }
    return RUDA_OK;
  }
};

}  // namespace

int32_t gemm_product_cuda(const gemm_args& args, const char* operation, ruda_error* error) {
  RUDA_CHECK(args.strategy != GEMM_LIBRARY, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] strategy: got 1 (library), wanted 0 (auto) or 2 (tiled) on the cuda target, which "
             "has kernels of its own and no library",
             operation);
  gemm_problem p = blas::problem_of(args);
  if (p.batches == 0 || p.m == 0 || p.n == 0) return RUDA_OK;
  // A few columns: the transposed product has a few rows.
  if (p.n <= 16 && p.m > 16 && args.bias == nullptr) blas::transpose(&p);
  return device_product(p, args).run(operation, error);
}

}  // namespace ruda
