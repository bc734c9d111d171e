/* "softmax.forward" and "softmax.backward": checks, choice and launch. */
#include "device.hpp"
#include "entries.hpp"
#include "host.hpp"
#include "split.hpp"
#include "streaming.hpp"

namespace ruda {
namespace {

constexpr int64_t grain = 16384;

int32_t check_axis(int64_t axis, const ruda_view* x, const char* operation, const char* name,
                   ruda_error* error) {
  RUDA_CHECK(x->ndim >= 1 && axis >= 0 && axis < x->ndim, error, RUDA_ERROR_VALUE,
             "[%s] axis: got %lld for %s of shape %s, wanted one of its axes, counted from 0",
             operation, static_cast<long long>(axis), name, shape_text(*x).c_str());
  return RUDA_OK;
}

using range_fn = void (*)(const softmax_rows&, int64_t, int64_t);

/* Rows where the axis is the last (or all after it are 1), else blocks of columns. */
void run(softmax_rows work, const ruda_view& result, const softmax_split& sizes, range_fn rows,
         range_fn columns) {
  if (element_count(result) == 0) return;
  work.count = sizes.count;
  work.inner = sizes.inner;
  if (sizes.inner == 1) {
    work.streamed = writes_past_caches(result, sizes.count);
    parallel_for(0, sizes.outer, grain_for(sizes.count, grain),
                 [&](int64_t begin, int64_t end, int32_t) { rows(work, begin, end); });
    return;
  }
  const int64_t blocks = (sizes.inner + softmax_columns - 1) / softmax_columns;
  const int64_t cost = sizes.count * (sizes.inner < softmax_columns ? sizes.inner : softmax_columns);
  parallel_for(0, sizes.outer * blocks, grain_for(cost, grain),
               [&](int64_t begin, int64_t end, int32_t) { columns(work, begin, end); });
}

int32_t forward(const void* raw, ruda_error* error) {
  const auto& args = *static_cast<const softmax_forward_args*>(raw);
  const char* operation = args.logarithm ? "log_softmax" : "softmax";
  return guard(operation, error, [&]() -> int32_t {
    RUDA_TRY(check_activation(args.x, operation, "x", error));
    RUDA_TRY(check_axis(args.axis, args.x, operation, "x", error));
    RUDA_TRY(check_like(args.y, args.x, operation, "y", "x", error));
    if (on_device(*args.x)) return softmax_forward_cuda(args, operation, error);
    softmax_rows work{};
    work.x = args.x->data;
    work.y = args.y->data;
    work.dtype = args.x->dtype;
    work.logarithm = args.logarithm != 0;
    run(work, *args.y, softmax_split(*args.x, args.axis), RUDA_HOST(softmax_forward_rows),
        RUDA_HOST(softmax_forward_columns));
    return RUDA_OK;
  });
}

int32_t backward(const void* raw, ruda_error* error) {
  const auto& args = *static_cast<const softmax_backward_args*>(raw);
  const char* operation = args.logarithm ? "log_softmax_backward" : "softmax_backward";
  return guard(operation, error, [&]() -> int32_t {
    RUDA_TRY(check_activation(args.y, operation, "y", error));
    RUDA_TRY(check_axis(args.axis, args.y, operation, "y", error));
    RUDA_TRY(check_like(args.grad, args.y, operation, "grad", "y", error));
    RUDA_TRY(check_like(args.dx, args.y, operation, "dx", "y", error));
    if (on_device(*args.y)) return softmax_backward_cuda(args, operation, error);
    softmax_rows work{};
    work.grad = args.grad->data;
    work.y = args.y->data;
    work.dx = args.dx->data;
    work.dtype = args.y->dtype;
    work.logarithm = args.logarithm != 0;
    run(work, *args.dx, softmax_split(*args.y, args.axis), RUDA_HOST(softmax_backward_rows),
        RUDA_HOST(softmax_backward_columns));
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_softmax(ruda_error* error) {
  RUDA_TRY(register_kernel("softmax.forward", "ruda-dnn", softmax_forward_args_layout, forward,
                           error));
  return register_kernel("softmax.backward", "ruda-dnn", softmax_backward_args_layout, backward,
                         error);
}

}  // namespace ruda
