/* The cross entropy's kernels on the cuda target; the choices are those of launch.py. Products go
 * through ruda-blas's registered "gemm.product". */
#include "device.hpp"

#include <ruda/blas.h>

#include <algorithm>
#include <limits>

#include "device_entries.hpp"
#include "rows.hpp"

namespace ruda {
namespace {

constexpr const char* operation = "linear_cross_entropy";

device_kernel index_targets{"linear_cross_entropy.index_targets"};
device_kernel gather_rows{"linear_cross_entropy.gather_rows"};
device_kernel scatter_rows{"linear_cross_entropy.scatter_rows"};
device_kernel rows_kernel{"linear_cross_entropy.rows"};
device_kernel add_columns_kernel{"linear_cross_entropy.add_columns"};
device_kernel sum_losses{"linear_cross_entropy.sum_losses"};
device_kernel zero_kernel{"linear_cross_entropy.zero"};

constexpr int64_t block = 1024;
constexpr int64_t class_block = 4096;
constexpr int64_t sum_rows = 16;
constexpr int64_t sum_columns = 128;

/* A matrix on the device that a ruda_view can point into. */
struct matrix {
  int64_t sizes[2];
  int64_t strides[2];
  ruda_view view;

  matrix(void* data, int32_t dtype, int64_t rows, int64_t columns, int32_t device)
      : matrix(data, dtype, rows, columns, columns, 1, device) {}
  explicit matrix(const ruda_view& from)
      : matrix(from.data, from.dtype, from.sizes[0], from.sizes[1], from.device) {}
  matrix(const matrix&) = delete;

  matrix transposed() const {
    return {view.data,  view.dtype, sizes[1],   sizes[0],
            strides[1], strides[0], view.device};
  }

 private:
  matrix(void* data, int32_t dtype, int64_t rows, int64_t columns, int64_t row_stride,
         int64_t column_stride, int32_t device)
      : sizes{rows, columns}, strides{row_stride, column_stride} {
    view = {data, sizes, strides, 2, dtype, RUDA_CUDA, device};
  }
};

/* What find_targets leaves on the device: the place of every row that counts, and their number with
 * the first row whose target is wrong. */
struct targets {
  scratch<int64_t> index;
  scratch<int64_t> stats;
  int64_t valid = 0;

  ruda_argument places() const { return pointer(index.get(), RUDA_INT64); }
  ruda_argument numbers() const { return pointer(stats.get(), RUDA_INT64); }
};

/* Waits for the numbers: errors and the work that follows depend on them. */
int32_t find_targets(const linear_cross_entropy_args& args, targets& found, ruda_error* error) {
  const int64_t rows = args.hidden->sizes[0], classes = args.head->sizes[0];
  found.index = scratch<int64_t>(rows);
  found.stats = scratch<int64_t>(2);
  RUDA_TRY(index_targets.launch(programs(1), {}, error, args.target, found.places(),
                                found.numbers(), integer(rows), integer(classes),
                                integer(args.ignore_index), integer(block)));
  const int32_t stream = api()->current_stream();
  int64_t numbers[2] = {0, 0};
  RUDA_TRY(api()->copy_to_host(numbers, found.stats.get(), sizeof numbers, stream, error));
  found.valid = numbers[0];
  if (numbers[1] >= rows) return RUDA_OK;
  int64_t wrong = 0;
  RUDA_TRY(api()->copy_to_host(&wrong, data<const int64_t>(*args.target) + numbers[1],
                               sizeof wrong, stream, error));
  return fail_target(numbers[1], wrong, classes, args.ignore_index, error);
}

int32_t zero(const ruda_view* view, ruda_error* error) {
  if (view == nullptr || element_count(*view) == 0) return RUDA_OK;
  const int64_t count = element_count(*view), blocks = ceil_div(count, block);
  RUDA_TRY(check_device_limit(blocks, operation, "blocks of 1024 gradients", error));
  return zero_kernel.launch(programs(blocks), {}, error, view, integer(count), integer(block));
}

/* out = a @ b + beta * out (+ bias). */
int32_t multiply(const ruda_kernel* product, const matrix& a, const matrix& b,
                 const ruda_view* bias, const matrix& out, double beta, ruda_error* error) {
  const gemm_args args{&a.view, &b.view, bias, &out.view, 1.0, beta, GEMM_AUTO};
  return product->run(&args, error);
}

/* The chunks' logits, losses and gradients. */
int32_t run(const linear_cross_entropy_args& args, const targets& found, const ruda_kernel* product,
            const ruda_argument& losses, ruda_error* error) {
  const int64_t width = args.hidden->sizes[1], classes = args.head->sizes[0];
  const int64_t valid = found.valid, width_blocks = ceil_div(width, block);
  const int64_t chunk = chunk_rows(valid, classes, args.token_chunk);
  const int32_t dtype = args.hidden->dtype, device = args.hidden->device;
  const bool gradient =
      args.dhidden != nullptr || args.dhead != nullptr || args.dbias != nullptr;
  const int64_t row_bytes = width * item_size(dtype);
  const scratch<uint8_t> gathered(valid * row_bytes);
  const scratch<float> logits(chunk * classes);
  const scratch<float> part(args.dhidden != nullptr ? chunk * width : 0);
  RUDA_TRY(gather_rows.launch(programs(valid, width_blocks), {}, error, args.hidden,
                              found.places(), found.numbers(), pointer(gathered.get(), dtype),
                              integer(width), integer(block)));
  const matrix head(*args.head);
  for (int64_t first = 0; first < valid; first += chunk) {
    const int64_t rows = std::min(chunk, valid - first);
    const double beta = first == 0 ? 0.0 : 1.0;
    const matrix left(gathered.get() + first * row_bytes, dtype, rows, width, device);
    const matrix delta(logits.get(), RUDA_FLOAT32, rows, classes, device);
    RUDA_TRY(multiply(product, left, head.transposed(), args.bias, delta, 0.0, error));
    RUDA_TRY(rows_kernel.launch(programs(rows), {8, 0}, error, argument(&delta.view), args.target,
                                found.places(), found.numbers(), losses, integer(first),
                                integer(classes), boolean(gradient), integer(class_block)));
    if (args.dhidden != nullptr) {
      const matrix out(part.get(), RUDA_FLOAT32, rows, width, device);
      RUDA_TRY(multiply(product, delta, head, nullptr, out, 0.0, error));
      RUDA_TRY(scatter_rows.launch(programs(rows, width_blocks), {}, error, argument(&out.view),
                                   found.places(), found.numbers(), args.dhidden, integer(first),
                                   integer(width), integer(block)));
    }
    if (args.dhead != nullptr) {
      const matrix out(*args.dhead);
      RUDA_TRY(multiply(product, delta.transposed(), left, nullptr, out, beta, error));
    }
    if (args.dbias != nullptr) {
      RUDA_TRY(add_columns_kernel.launch(programs(ceil_div(classes, sum_columns)), {}, error,
                                         argument(&delta.view), args.dbias, integer(rows),
                                         integer(classes), boolean(first > 0), integer(sum_rows),
                                         integer(sum_columns)));
    }
  }
  return RUDA_OK;
}

/* Loops over rows, classes and columns count in 32 bits, a last block's end included. */
int32_t check_sizes(const linear_cross_entropy_args& args, ruda_error* error) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - class_block;
  RUDA_TRY(check_device_limit(args.hidden->sizes[0], operation, "rows", error, most));
  RUDA_TRY(check_device_limit(args.head->sizes[0], operation, "classes", error, most));
  return check_device_limit(ceil_div(args.hidden->sizes[1], block), operation,
                            "blocks of 1024 columns", error, largest_grid_y);
}

}  // namespace

int32_t linear_cross_entropy_cuda(const linear_cross_entropy_args& args, ruda_error* error) {
  RUDA_TRY(check_sizes(args, error));
  const ruda_kernel* product = nullptr;
  RUDA_TRY(find_kernel("gemm.product", gemm_args_layout, &product, error));
  targets found;
  RUDA_TRY(find_targets(args, found, error));
  const scratch<float> memory(std::max<int64_t>(found.valid, 1));
  const ruda_argument losses = pointer(memory.get(), RUDA_FLOAT32);
  RUDA_TRY(zero(args.dhidden, error));  // ignored rows get no gradient
  if (found.valid == 0) {
    RUDA_TRY(zero(args.dhead, error));
    RUDA_TRY(zero(args.dbias, error));
  } else {
    RUDA_TRY(run(args, found, product, losses, error));
  }
  return sum_losses.launch(programs(1), {}, error, losses, found.numbers(), args.loss, args.count,
                           integer(found.valid), integer(block));
}

}  // namespace ruda
