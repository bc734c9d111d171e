/* "layer_norm.forward" and "layer_norm.backward": checks, choice and launch. */
#include "checks.hpp"
#include "device.hpp"
#include "streaming.hpp"

namespace ruda {
namespace {

int32_t forward(const void* raw, ruda_error* error) {
  const char* operation = "layer_norm";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const layer_norm_forward_args*>(raw);
    RUDA_TRY(check_input(args.x, operation, error));
    const int64_t width = last_size(*args.x);
    RUDA_TRY(check_optional_parameter(args.weight, args.x, operation, "weight", error));
    RUDA_TRY(check_optional_parameter(args.bias, args.x, operation, "bias", error));
    RUDA_TRY(check_like(args.y, args.x, operation, "y", "x", error));
    if (args.mean != nullptr) {
      RUDA_TRY(check_statistic(args.mean, args.x, operation, "mean", error));
    }
    if (args.rstd != nullptr) {
      RUDA_TRY(check_statistic(args.rstd, args.x, operation, "rstd", error));
    }
    RUDA_TRY(check_epsilon(args.epsilon, operation, error));
    if (on_device(*args.x)) return layer_norm_forward_cuda(args, error);
    scratch<float> weight, bias;
    const layer_forward_rows work{args.x->data,
                                  as_float32(args.weight, weight),
                                  as_float32(args.bias, bias),
                                  args.y->data,
                                  args.mean == nullptr ? nullptr : data<float>(*args.mean),
                                  args.rstd == nullptr ? nullptr : data<float>(*args.rstd),
                                  width,
                                  args.epsilon,
                                  args.x->dtype,
                                  writes_past_caches(*args.y, width)};
    const auto run = RUDA_HOST(layer_norm_forward);
    parallel_for(0, row_count(*args.x), row_grain(width),
                 [&](int64_t begin, int64_t end, int32_t) { run(work, begin, end); });
    return RUDA_OK;
  });
}

int32_t backward(const void* raw, ruda_error* error) {
  const char* operation = "layer_norm_backward";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const layer_norm_backward_args*>(raw);
    RUDA_TRY(check_input(args.x, operation, error));
    const int64_t width = last_size(*args.x);
    const int64_t rows = row_count(*args.x);
    RUDA_TRY(check_optional_parameter(args.weight, args.x, operation, "weight", error));
    RUDA_TRY(check_like(args.grad, args.x, operation, "grad", "x", error));
    RUDA_TRY(check_statistic(args.mean, args.x, operation, "mean", error));
    RUDA_TRY(check_statistic(args.rstd, args.x, operation, "rstd", error));
    if (args.dx != nullptr) RUDA_TRY(check_like(args.dx, args.x, operation, "dx", "x", error));
    RUDA_TRY(check_optional_parameter(args.dweight, args.x, operation, "dweight", error));
    RUDA_TRY(check_optional_parameter(args.dbias, args.x, operation, "dbias", error));
    RUDA_TRY(check_parts(args.parts, operation, error));
    if (on_device(*args.x)) return layer_norm_backward_cuda(args, error);
    scratch<float> weight;
    const layer_backward_rows work{args.x->data,
                                   as_float32(args.weight, weight),
                                   args.grad->data,
                                   data<const float>(*args.mean),
                                   data<const float>(*args.rstd),
                                   args.dx == nullptr ? nullptr : args.dx->data,
                                   width,
                                   args.x->dtype,
                                   args.dx != nullptr && writes_past_caches(*args.dx, width)};
    const auto run = RUDA_HOST(layer_norm_backward);
    if (args.dweight != nullptr || args.dbias != nullptr) {
      const row_partials sums(rows, 2 * width, args.parts,
                              [&](float* partial, int64_t begin, int64_t end) {
                                run(work, partial, begin, end);
                              });
      if (args.dweight != nullptr) sums.sum_to(*args.dweight, 0);
      if (args.dbias != nullptr) sums.sum_to(*args.dbias, width);
    } else if (args.dx != nullptr) {
      parallel_for(0, rows, row_grain(width),
                   [&](int64_t begin, int64_t end, int32_t) { run(work, nullptr, begin, end); });
    }
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_layer_norm(ruda_error* error) {
  RUDA_TRY(register_kernel("layer_norm.forward", "ruda-dnn", layer_norm_forward_args_layout,
                           forward, error));
  return register_kernel("layer_norm.backward", "ruda-dnn", layer_norm_backward_args_layout,
                         backward, error);
}

}  // namespace ruda
