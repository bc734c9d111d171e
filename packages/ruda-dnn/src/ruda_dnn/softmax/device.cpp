/* The softmax kernels on the cuda target; the choices are those of launch.py. */
#include "device.hpp"

#include <limits>

#include "device_entries.hpp"
#include "split.hpp"

namespace ruda {
namespace {

device_kernel rows_kernel{"softmax.rows"};
device_kernel columns_kernel{"softmax.columns"};
device_kernel rows_backward{"softmax.rows_backward"};
device_kernel columns_backward{"softmax.columns_backward"};

constexpr int64_t steps = 16;
constexpr int64_t lanes = 64;
constexpr int64_t largest_axis = std::numeric_limits<int32_t>::max() - 8192;  // a block may follow

struct row_blocks {
  int64_t block = 4096;
  bool one_pass = false;
  int32_t warps = 8;

  /* Rows of up to 8192 values stay in registers. */
  explicit row_blocks(int64_t count) {
    constexpr struct {
      int64_t block;
      int32_t warps;
    } whole[] = {{1024, 4}, {4096, 8}, {8192, 16}};
    for (const auto& each : whole) {
      if (count > each.block) continue;
      block = each.block;
      one_pass = true;
      warps = each.warps;
      return;
    }
  }
};

template <class... Views>
int32_t run(device_kernel& rows, device_kernel& columns, const ruda_view& model, int64_t axis,
            bool logarithm, const char* operation, ruda_error* error, const Views*... views) {
  const softmax_split sizes(model, axis);
  if (sizes.outer * sizes.count * sizes.inner == 0) return RUDA_OK;
  RUDA_TRY(check_device_limit(sizes.count, operation, "the axis", error, largest_axis));
  if (sizes.inner == 1) {
    RUDA_TRY(check_device_limit(sizes.outer, operation, "rows", error));
    const row_blocks chosen(sizes.count);
    return rows.launch(programs(sizes.outer), {chosen.warps, 0}, error, views...,
                       integer(sizes.count), boolean(logarithm), integer(chosen.block),
                       boolean(chosen.one_pass));
  }
  RUDA_TRY(check_device_limit(sizes.inner, operation, "elements behind the axis", error,
                              largest_axis));
  RUDA_CHECK(sizes.outer <= largest_grid_y, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] axis: got %lld of shape %s, wanted at most %lld slices before it on the cuda "
             "target; move the axis to the end",
             operation, static_cast<long long>(axis), shape_text(model).c_str(),
             static_cast<long long>(largest_grid_y));
  return columns.launch(programs(ceil_div(sizes.inner, lanes), sizes.outer), {}, error, views...,
                        integer(sizes.count), integer(sizes.inner), boolean(logarithm),
                        integer(steps), integer(lanes));
}

}  // namespace

int32_t softmax_forward_cuda(const softmax_forward_args& args, const char* operation,
                             ruda_error* error) {
  return run(rows_kernel, columns_kernel, *args.x, args.axis, args.logarithm != 0, operation, error,
             args.x, args.y);
}

int32_t softmax_backward_cuda(const softmax_backward_args& args, const char* operation,
                              ruda_error* error) {
  return run(rows_backward, columns_backward, *args.y, args.axis, args.logarithm != 0, operation,
             error, args.grad, args.y, args.dx);
}

}  // namespace ruda
