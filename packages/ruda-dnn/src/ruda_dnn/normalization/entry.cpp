/* "rms_norm.forward" and "rms_norm.backward": checks, choice and launch. */
#include "checks.hpp"
#include "device.hpp"
#include "streaming.hpp"

namespace ruda {
namespace {

int32_t forward(const void* raw, ruda_error* error) {
  const char* operation = "rms_norm";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const rms_norm_forward_args*>(raw);
    RUDA_TRY(check_input(args.x, operation, error));
    const int64_t width = last_size(*args.x);
    RUDA_TRY(check_optional_parameter(args.weight, args.x, operation, "weight", error));
    RUDA_TRY(check_like(args.y, args.x, operation, "y", "x", error));
    if (args.rstd != nullptr) {
      RUDA_TRY(check_statistic(args.rstd, args.x, operation, "rstd", error));
    }
    RUDA_TRY(check_epsilon(args.epsilon, operation, error));
    if (on_device(*args.x)) return rms_norm_forward_cuda(args, error);
    scratch<float> storage;
    const rms_forward_rows work{args.x->data,
                                as_float32(args.weight, storage),
                                args.y->data,
                                args.rstd == nullptr ? nullptr : data<float>(*args.rstd),
                                width,
                                args.epsilon,
                                args.x->dtype,
                                writes_past_caches(*args.y, width)};
    const auto run = RUDA_HOST(rms_norm_forward);
    parallel_for(0, row_count(*args.x), row_grain(width),
                 [&](int64_t begin, int64_t end, int32_t) { run(work, begin, end); });
    return RUDA_OK;
  });
}

int32_t backward(const void* raw, ruda_error* error) {
  const char* operation = "rms_norm_backward";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const rms_norm_backward_args*>(raw);
    RUDA_TRY(check_input(args.x, operation, error));
    const int64_t width = last_size(*args.x);
    const int64_t rows = row_count(*args.x);
    RUDA_TRY(check_optional_parameter(args.weight, args.x, operation, "weight", error));
    RUDA_TRY(check_like(args.grad, args.x, operation, "grad", "x", error));
    RUDA_TRY(check_statistic(args.rstd, args.x, operation, "rstd", error));
    if (args.dx != nullptr) RUDA_TRY(check_like(args.dx, args.x, operation, "dx", "x", error));
    if (args.dweight != nullptr) {
      RUDA_CHECK(args.weight != nullptr, error, RUDA_ERROR_VALUE,
                 "[%s] dweight: got an output without a weight, wanted both or neither", operation);
      RUDA_TRY(check_parameter(args.dweight, args.x, operation, "dweight", error));
      RUDA_TRY(check_dtype(args.dweight, {args.weight->dtype}, operation, "dweight", error));
    }
    RUDA_TRY(check_parts(args.parts, operation, error));
    if (on_device(*args.x)) return rms_norm_backward_cuda(args, error);
    scratch<float> storage;
    const rms_backward_rows work{args.x->data,
                                 as_float32(args.weight, storage),
                                 args.grad->data,
                                 data<const float>(*args.rstd),
                                 args.dx == nullptr ? nullptr : args.dx->data,
                                 width,
                                 args.x->dtype,
                                 args.dx != nullptr && writes_past_caches(*args.dx, width)};
    const auto run = RUDA_HOST(rms_norm_backward);
    if (args.dweight != nullptr) {
      row_partials(rows, width, args.parts, [&](float* partial, int64_t begin, int64_t end) {
        run(work, partial, begin, end);
      }).sum_to(*args.dweight, 0);
    } else if (args.dx != nullptr) {
      parallel_for(0, rows, row_grain(width),
                   [&](int64_t begin, int64_t end, int32_t) { run(work, nullptr, begin, end); });
    }
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_normalization(ruda_error* error) {
  RUDA_TRY(register_kernel("rms_norm.forward", "ruda-dnn", rms_norm_forward_args_layout, forward,
                           error));
  RUDA_TRY(register_kernel("rms_norm.backward", "ruda-dnn", rms_norm_backward_args_layout,
                           backward, error));
  return register_layer_norm(error);
}

}  // namespace ruda
