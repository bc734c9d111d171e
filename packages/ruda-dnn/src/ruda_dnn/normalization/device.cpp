/* The normalisations' kernels on the cuda target; the choices are those of launch.py. */
#include "device.hpp"

#include <algorithm>
#include <limits>

#include "checks.hpp"
#include "device_entries.hpp"

namespace ruda {
namespace {

device_kernel rms_forward{"rms_norm.forward"};
device_kernel rms_backward{"rms_norm.backward"};
device_kernel layer_forward{"layer_norm.forward"};
device_kernel layer_backward{"layer_norm.backward"};
device_kernel parameter_partials{"normalization.parameter_partials"};
device_kernel sum_partials_kernel{"normalization.sum_partials"};

constexpr int64_t partial_rows = 16;
constexpr int64_t partial_columns = 128;
constexpr int64_t sum_columns = 256;

struct row_blocks {
  int64_t block = 2048;
  bool one_pass = false;
  int32_t warps = 8;

  /* Aligned rows of up to 8192 values stay in registers. */
  row_blocks(int64_t width, bool aligned) {
    constexpr struct {
      int64_t block;
      int32_t warps;
    } whole[] = {{1024, 4}, {2048, 8}, {4096, 8}, {8192, 16}};
    if (!aligned || width % 16 != 0) return;
    for (const auto& each : whole) {
      if (width > each.block) continue;
      block = each.block;
      one_pass = true;
      warps = each.warps;
      return;
    }
  }
};

int32_t check_size(int64_t rows, int64_t width, const char* operation, ruda_error* error) {
  RUDA_TRY(check_device_limit(rows, operation, "rows", error));
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - 8192;  // a block may follow
  return check_device_limit(width, operation, "the last axis", error, most);
}

/* A statistic's memory: the caller's, or scratch. */
ruda_argument statistic(const ruda_view* given, int64_t rows, scratch<float>& storage) {
  if (given != nullptr) return argument(given);
  storage = scratch<float>(rows);
  return pointer(storage.get(), RUDA_FLOAT32);
}

struct parameter_gradients {
  const ruda_view* x;
  const ruda_view* grad;
  const ruda_view* mean;  // null, and rest absent: rstd is the row's only statistic
  const ruda_view* rstd;
  ruda_argument rest;
  const ruda_view* dweight;
  const ruda_view* dbias;
  int64_t parts;
};

/* float32 parts of consecutive rows, then their sum in order. */
int32_t sum_parameters(const parameter_gradients& args, const char* operation, ruda_error* error) {
  if (args.dweight == nullptr && args.dbias == nullptr) return RUDA_OK;
  const int64_t width = last_size(*args.x), rows = row_count(*args.x);
  const int64_t count = part_count(rows, args.parts);
  RUDA_TRY(check_device_limit(ceil_div(width, partial_columns), operation,
                              "blocks of 128 columns", error, largest_grid_y));
  const ruda_view* results[2] = {args.dweight, args.dbias};
  scratch<float> storage[2];
  ruda_argument sums[2] = {nothing(), nothing()};
  for (int i = 0; i < 2; ++i) {
    if (results[i] == nullptr) continue;
    storage[i] = scratch<float>(count * width);
    sums[i] = pointer(storage[i].get(), RUDA_FLOAT32);
  }
  RUDA_TRY(parameter_partials.launch(
      programs(count, ceil_div(width, partial_columns)), {}, error, args.x, args.grad, args.mean,
      args.rstd, args.rest, sums[0], sums[1], integer(rows), integer(count), integer(width),
      integer(partial_rows), integer(partial_columns)));
  for (int i = 0; i < 2; ++i) {
    if (results[i] == nullptr) continue;
    RUDA_TRY(sum_partials_kernel.launch(programs(ceil_div(width, sum_columns)), {}, error, sums[i],
                                        results[i], integer(count), integer(width),
                                        integer(sum_columns)));
  }
  return RUDA_OK;
}

}  // namespace

int32_t rms_norm_forward_cuda(const rms_norm_forward_args& args, ruda_error* error) {
  const int64_t width = last_size(*args.x), rows = row_count(*args.x);
  if (rows == 0) return RUDA_OK;
  RUDA_TRY(check_size(rows, width, "rms_norm", error));
  scratch<float> storage;
  const ruda_argument rstd = statistic(args.rstd, rows, storage);
  const row_blocks chosen(width, aligned_to_16({args.x->data, address_of(args.weight),
                                                args.y->data, rstd.value.pointer}));
  return rms_forward.launch(programs(rows), {chosen.warps, 0}, error, args.x, args.weight, args.y,
                            rstd, integer(width), real(args.epsilon), integer(chosen.block),
                            boolean(chosen.one_pass));
}

int32_t rms_norm_backward_cuda(const rms_norm_backward_args& args, ruda_error* error) {
  const char* operation = "rms_norm_backward";
  const int64_t width = last_size(*args.x), rows = row_count(*args.x);
  RUDA_TRY(check_size(rows, width, operation, error));
  if (args.dx != nullptr && rows > 0) {
    const row_blocks chosen(width,
                            aligned_to_16({args.x->data, address_of(args.weight), args.grad->data,
                                           args.rstd->data, args.dx->data}));
    RUDA_TRY(rms_backward.launch(programs(rows), {chosen.warps, 0}, error, args.x, args.weight,
                                 args.grad, args.rstd, args.dx, integer(width),
                                 integer(chosen.block), boolean(chosen.one_pass)));
  }
  return sum_parameters({args.x, args.grad, nullptr, args.rstd, nothing(), args.dweight, nullptr,
                         args.parts},
                        operation, error);
}

int32_t layer_norm_forward_cuda(const layer_norm_forward_args& args, ruda_error* error) {
  const int64_t width = last_size(*args.x), rows = row_count(*args.x);
  if (rows == 0) return RUDA_OK;
  RUDA_TRY(check_size(rows, width, "layer_norm", error));
  scratch<float> mean_storage, rstd_storage;
  const ruda_argument mean = statistic(args.mean, rows, mean_storage);
  const ruda_argument rstd = statistic(args.rstd, rows, rstd_storage);
  const row_blocks chosen(
      width, aligned_to_16({args.x->data, address_of(args.weight), address_of(args.bias),
                            args.y->data, mean.value.pointer, rstd.value.pointer}));
  return layer_forward.launch(programs(rows), {chosen.warps, 0}, error, args.x, args.weight,
                              args.bias, args.y, mean, rstd, integer(width), real(args.epsilon),
                              integer(chosen.block), boolean(chosen.one_pass));
}

int32_t layer_norm_backward_cuda(const layer_norm_backward_args& args, ruda_error* error) {
  const char* operation = "layer_norm_backward";
  const int64_t width = last_size(*args.x), rows = row_count(*args.x);
  RUDA_TRY(check_size(rows, width, operation, error));
  scratch<float> storage;
  ruda_argument rest = nothing();
  if (args.dx != nullptr || args.dweight != nullptr) {
    storage = scratch<float>(std::max<int64_t>(rows, 1));
    rest = pointer(storage.get(), RUDA_FLOAT32);
    const bool small = width <= 1024;
    RUDA_TRY(layer_backward.launch(programs(rows), {small ? 4 : 8, 0}, error, args.x, args.weight,
                                   args.grad, args.mean, args.rstd, args.dx, rest, integer(width),
                                   integer(small ? 1024 : 4096)));
  }
  const bool weighted = args.dweight != nullptr;  // the sum of grad alone is RMSNorm's
  return sum_parameters({args.x, args.grad, weighted ? args.mean : nullptr, args.rstd,
                         weighted ? rest : nothing(), args.dweight, args.dbias, args.parts},
                        operation, error);
}

}  // namespace ruda
