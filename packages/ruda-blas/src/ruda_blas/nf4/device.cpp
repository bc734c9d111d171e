/* The NF4 kernels on the cuda target; the choices are those of launch.py, which
 * tests/test_device_launches.py compares. */
#include "device.hpp"

#include <algorithm>
#include <bit>

#include <ruda/device.hpp>

#include "checks.hpp"

namespace ruda {
namespace {

device_kernel nonfinite_kernel{"nf4.find_nonfinite"};
device_kernel least_kernel{"nf4.least"};
device_kernel quantize_kernel{"nf4.quantize"};
device_kernel dequantize_kernel{"nf4.dequantize"};
device_kernel product_kernel{"nf4.product"};
device_kernel gemv_kernel{"nf4.gemv"};

constexpr int64_t flat_block = 1024;
constexpr int64_t gemv_rows = 4, gemv_columns = 4, gemv_half = 256;
constexpr int64_t rank_step = 16, group = 8;
constexpr int64_t many = 96;  // tiles that fill a GPU
/* Kernels count rows, columns and steps in 32 bits, up to a tile beyond the end. */
constexpr int64_t largest_size = (int64_t{1} << 31) - (int64_t{1} << 16);

struct tile {
  int64_t m, n, k;
  ruda_launch_options how;
};

struct tiles {
  tile few, medium, large, large_gradient;
};

constexpr tiles half_tiles{{16, 64, 64, {4, 2}},
                           {64, 64, 64, {4, 2}},
                           {128, 128, 32, {8, 2}},
                           {128, 64, 64, {8, 2}}};
constexpr tiles float_tiles{{16, 64, 32, {4, 2}},
                            {64, 64, 16, {4, 2}},
                            {128, 64, 16, {8, 2}},
                            {128, 64, 16, {8, 2}}};

int64_t next_power_of_two(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

bool is_power_of_two(int64_t value) { return std::has_single_bit(static_cast<uint64_t>(value)); }

/* The logarithm of a power of two; 0 for other block sizes. */
int64_t shift_of(int64_t block_size) {
  return is_power_of_two(block_size) ? std::countr_zero(static_cast<uint64_t>(block_size)) : 0;
}

/* How the kernels find the elements of a matrix from their flat row-major index. */
struct flat_matrix {
  ruda_argument cols, row_stride, col_stride, contiguous;

  explicit flat_matrix(const ruda_view& view) {
    const bool dense = (view.strides[0] == view.sizes[1] && view.strides[1] == 1) ||
                       element_count(view) <= 1;
    cols = integer(view.sizes[1]);
    row_stride = integer(dense ? 0 : view.strides[0]);
    col_stride = integer(dense ? 0 : view.strides[1]);
    contiguous = boolean(dense);
  }
};

/* The element at a flat index, as float32; waits. */
int32_t read_value(const ruda_view& weight, int64_t at, float* value, ruda_error* error) {
  const int64_t cols = weight.sizes[1];
  char bytes[sizeof(float)];
  const int32_t stream = api()->current_stream();
  const blas::matrix place = matrix_of(weight).at(at / cols, at % cols);
  RUDA_TRY(api()->copy_to_host(bytes, place.data, static_cast<size_t>(place.item), stream, error));
  RUDA_TRY(api()->synchronize(stream, error));
  RUDA_HOST(load_block)({bytes, 1, 1, weight.dtype, place.item}, 1, 1, value, 1);
  return RUDA_OK;
}

int32_t check_finite(const ruda_view& weight, const char* operation, ruda_error* error) {
  const int64_t count = element_count(weight), parts = ceil_div(count, flat_block);
  RUDA_TRY(check_device_limit(parts, operation, "parts of 1024 values", error));
  const flat_matrix flat(weight);
  const scratch<int64_t> found(parts), least(1);
  const ruda_argument places = pointer(found.get(), RUDA_INT64);
  RUDA_TRY(nonfinite_kernel.launch(programs(parts), {}, error, &weight, places,
                                           integer(count), flat.cols, flat.row_stride,
                                           flat.col_stride, flat.contiguous, integer(flat_block)));
  RUDA_TRY(least_kernel.launch(programs(1), {}, error, places, integer(parts), integer(count),
                               pointer(least.get(), RUDA_INT64), integer(flat_block)));
  int64_t at = 0;
  const int32_t stream = api()->current_stream();
  RUDA_TRY(api()->copy_to_host(&at, least.get(), sizeof(at), stream, error));
  RUDA_TRY(api()->synchronize(stream, error));
  if (at >= count) return RUDA_OK;
  float value = 0.0f;
  RUDA_TRY(read_value(weight, at, &value, error));
  return fail_nonfinite(value, at, weight.sizes[1], operation, error);
}

/* What a product's arguments say about the kernels' choice. */
struct device_product {
  const nf4_matmul_args& args;
  const bool forward;
  const int64_t m, n;
  const bool paired;

  device_product(const nf4_matmul_args& given, bool is_forward)
      : args(given),
        forward(is_forward),
        m(given.x->sizes[0]),
        n(is_forward ? given.out_features : given.in_features),
        paired(is_power_of_two(given.block_size) && given.in_features % 2 == 0) {}

  int32_t check_sizes(const char* operation, ruda_error* error) const {
    RUDA_TRY(check_device_limit(m, operation, "rows of x", error, largest_size));
    RUDA_TRY(check_device_limit(args.out_features, operation, "out_features", error, largest_size));
    return check_device_limit(args.in_features, operation, "in_features", error, largest_size);
  }

  const tile& choose_tile() const {
    const bool half = args.x->dtype != RUDA_FLOAT32;
    const tiles& all = half ? half_tiles : float_tiles;
    if (m <= 16) return all.few;
    const tile& large = forward ? all.large : all.large_gradient;
    return count_tiles(large) >= many ? large : all.medium;
  }

  int64_t count_tiles(const tile& of) const { return ceil_div(m, of.m) * ceil_div(n, of.n); }

  template <class... Constants>
  int32_t launch(device_kernel& kernel, int64_t count, const ruda_launch_options& how,
                 ruda_error* error, const Constants&... constants) const {
    const ruda_view &x = *args.x, &y = *args.y;
    const int64_t rank = args.update_x == nullptr ? 0 : args.update_x->sizes[1];
    const ruda_view* ux = rank == 0 ? nullptr : args.update_x;
    const ruda_view* uw = rank == 0 ? nullptr : args.update_w;
    return kernel.launch(
        programs(count), how, error, &x, args.packed, args.scales, args.codebook, args.bias, &y, ux,
        uw, integer(m), integer(args.out_features), integer(args.in_features),
        integer(args.in_features / 2), integer(args.block_size), integer(shift_of(args.block_size)),
        integer(rank), integer(m == 1 ? 0 : x.strides[0]),
        integer(x.sizes[1] > 1 ? x.strides[1] : 1), integer(m == 1 ? 0 : y.strides[0]),
        integer(n > 1 ? y.strides[1] : 1),
        integer(args.bias == nullptr || n == 1 ? 1 : args.bias->strides[0]),
        integer(ux == nullptr ? 0 : ux->strides[0]), integer(ux == nullptr ? 1 : ux->strides[1]),
        integer(uw == nullptr ? 0 : uw->strides[0]), integer(uw == nullptr ? 1 : uw->strides[1]),
        constants...);
  }

  int32_t run(const char* operation, ruda_error* error) const {
    RUDA_TRY(check_sizes(operation, error));
    if (forward && paired && m <= gemv_rows)
      return launch(gemv_kernel, ceil_div(n, gemv_columns), {}, error,
                    integer(next_power_of_two(m)), integer(gemv_columns), integer(gemv_half));
    const tile& chosen = choose_tile();
    const int64_t count = count_tiles(chosen), width = forward ? chosen.k : chosen.n;
    RUDA_TRY(check_device_limit(count, operation, "tiles of the product", error));
    const bool one_scale =
        paired && args.in_features % args.block_size == 0 && args.block_size % width == 0;
    return launch(product_kernel, count, chosen.how, error, boolean(forward), boolean(paired),
                  boolean(one_scale), integer(chosen.m), integer(chosen.n), integer(chosen.k),
                  integer(rank_step), integer(group));
  }
};

}  // namespace

int32_t nf4_quantize_cuda(const nf4_quantize_args& args, const char* operation, ruda_error* error) {
  // All values are looked at before the first code is written: nothing is lost on an error.
  RUDA_TRY(check_finite(*args.weight, operation, error));
  const scratch<float> codebook(16);
  RUDA_TRY(api()->copy_to_device(codebook.get(), blas::nf4_values, sizeof(blas::nf4_values),
                                 api()->current_stream(), error));
  const int64_t count = element_count(*args.weight);
  const int64_t half = std::min<int64_t>(next_power_of_two(args.block_size / 2), 1024);
  const int64_t at_once = std::max<int64_t>(1, 1024 / half);
  const int64_t blocks = ceil_div(count, args.block_size);
  const flat_matrix flat(*args.weight);
  RUDA_TRY(check_device_limit(ceil_div(blocks, at_once), operation, "blocks", error));
  return quantize_kernel.launch(programs(ceil_div(blocks, at_once)), {}, error, args.weight,
                                pointer(codebook.get(), RUDA_FLOAT32), args.packed, args.scales,
                                integer(count), flat.cols, flat.row_stride, flat.col_stride,
                                integer(args.block_size), integer(blocks), flat.contiguous,
                                integer(at_once), integer(half));
}

int32_t nf4_dequantize_cuda(const nf4_dequantize_args& args, const char* operation,
                            ruda_error* error) {
  const int64_t count = element_count(*args.weight);
  const flat_matrix flat(*args.weight);
  RUDA_TRY(check_device_limit(ceil_div(count, flat_block), operation, "parts of 1024 values", error));
  return dequantize_kernel.launch(
      programs(ceil_div(count, flat_block)), {}, error, args.packed, args.scales, args.codebook,
      args.weight, integer(count), flat.cols, flat.row_stride, flat.col_stride,
      integer(args.block_size), integer(shift_of(args.block_size)), flat.contiguous,
      boolean(is_power_of_two(args.block_size)), integer(flat_block));
}

int32_t nf4_product_cuda(const nf4_matmul_args& args, bool forward, const char* operation,
                         ruda_error* error) {
  return device_product(args, forward).run(operation, error);
}

}  // namespace ruda
