/* "rms_norm.forward" and "rms_norm.backward": checks, choice and launch. */
#include <algorithm>
#include <cmath>
#include <cstring>

#include "entries.hpp"
#include "host.hpp"

namespace ruda {
namespace {

/* weight[H] in x's dtype or float32. */
int32_t check_weight(const ruda_view* weight, const ruda_view* x, const char* operation,
                     const char* name, ruda_error* error) {
  RUDA_TRY(check_dense(weight, operation, name, error));
  const int64_t width = last_size(*x);
  RUDA_CHECK(weight->ndim == 1 && weight->sizes[0] == width, error, RUDA_ERROR_VALUE,
             "[%s] %s must have shape [H] = [%lld], got %s", operation, name,
             static_cast<long long>(width), shape_text(*weight).c_str());
  if (weight->dtype == RUDA_FLOAT32) return RUDA_OK;
  return check_dtype(weight, {RUDA_FLOAT32, x->dtype}, operation, name, error);
}

int32_t check_input(const ruda_view* x, const char* operation, ruda_error* error) {
  RUDA_TRY(check_activation(x, operation, "x", error));
  RUDA_CHECK(x->ndim >= 1 && last_size(*x) >= 1, error, RUDA_ERROR_VALUE,
             "[%s] x: got shape %s, wanted a last axis that is not empty", operation,
             shape_text(*x).c_str());
  return RUDA_OK;
}

/* The weight as float32: the caller's memory, or a copy in `storage`. */
const float* float_weight(const ruda_view* weight, scratch<float>& storage) {
  if (weight == nullptr) return nullptr;
  if (weight->dtype == RUDA_FLOAT32) return data<const float>(*weight);
  storage = scratch<float>(weight->sizes[0]);
  RUDA_HOST(widen_to_float)(weight->data, weight->dtype, storage.get(), weight->sizes[0]);
  return storage.get();
}

/* Rows a part of a parallel loop gets: about 16,384 elements. */
int64_t row_grain(int64_t width) { return grain_for(width, 16384); }

int32_t forward(const void* raw, ruda_error* error) {
  const char* operation = "rms_norm";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const rms_norm_forward_args*>(raw);
    RUDA_TRY(check_input(args.x, operation, error));
    const int64_t width = last_size(*args.x);
    const int64_t rows = row_count(*args.x);
    if (args.weight != nullptr) {
      RUDA_TRY(check_weight(args.weight, args.x, operation, "weight", error));
    }
    RUDA_TRY(check_like(args.y, args.x, operation, "y", "x", error));
    if (args.rstd != nullptr) {
      RUDA_TRY(check_dense(args.rstd, operation, "rstd", error));
      RUDA_TRY(check_dtype(args.rstd, {RUDA_FLOAT32}, operation, "rstd", error));
      RUDA_TRY(check_shape(args.rstd, {rows}, operation, "rstd", error));
    }
    RUDA_CHECK(std::isfinite(args.epsilon) && static_cast<float>(args.epsilon) > 0.0f &&
                   std::isfinite(static_cast<float>(args.epsilon)),
               error, RUDA_ERROR_VALUE,
               "[%s] epsilon: got %g, wanted a number that is positive and finite in float32",
               operation, args.epsilon);
    scratch<float> storage;
    const rms_forward_rows work{args.x->data,
                                float_weight(args.weight, storage),
                                args.y->data,
                                args.rstd == nullptr ? nullptr : data<float>(*args.rstd),
                                width,
                                args.epsilon,
                                args.x->dtype};
    const auto run = RUDA_HOST(rms_norm_forward);
    parallel_for(0, rows, row_grain(width),
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
    if (args.weight != nullptr) {
      RUDA_TRY(check_weight(args.weight, args.x, operation, "weight", error));
    }
    RUDA_TRY(check_like(args.grad, args.x, operation, "grad", "x", error));
    RUDA_TRY(check_dense(args.rstd, operation, "rstd", error));
    RUDA_TRY(check_dtype(args.rstd, {RUDA_FLOAT32}, operation, "rstd", error));
    RUDA_TRY(check_shape(args.rstd, {rows}, operation, "rstd", error));
    if (args.dx != nullptr) RUDA_TRY(check_like(args.dx, args.x, operation, "dx", "x", error));
    if (args.dweight != nullptr) {
      RUDA_CHECK(args.weight != nullptr, error, RUDA_ERROR_VALUE,
                 "[%s] dweight: got an output without a weight, wanted both or neither", operation);
      RUDA_TRY(check_weight(args.dweight, args.x, operation, "dweight", error));
      RUDA_TRY(check_dtype(args.dweight, {args.weight->dtype}, operation, "dweight", error));
    }
    RUDA_CHECK(args.parts >= 0, error, RUDA_ERROR_VALUE,
               "[%s] parts: got %lld, wanted 0 (chosen by the row count) or more", operation,
               static_cast<long long>(args.parts));
    scratch<float> storage;
    const rms_backward_rows work{args.x->data,
                                 float_weight(args.weight, storage),
                                 args.grad->data,
                                 data<const float>(*args.rstd),
                                 args.dx == nullptr ? nullptr : args.dx->data,
                                 width,
                                 args.x->dtype};
    const auto run = RUDA_HOST(rms_norm_backward);
    if (args.dweight == nullptr) {
      if (args.dx == nullptr) return RUDA_OK;
      parallel_for(0, rows, row_grain(width),
                   [&](int64_t begin, int64_t end, int32_t) { run(work, nullptr, begin, end); });
      return RUDA_OK;
    }
    // The parts follow from the row count alone, so the sum's order does not know the threads.
    const int64_t wanted =
        args.parts != 0 ? args.parts : std::clamp<int64_t>((rows + 31) / 32, 1, 128);
    const int64_t parts = std::max<int64_t>(1, std::min(wanted, rows));
    scratch<float> partials(parts * width);
    parallel_for(0, parts, 1, [&](int64_t first, int64_t last, int32_t) {
      for (int64_t part = first; part < last; ++part) {
        float* partial = partials.get() + part * width;
        std::memset(partial, 0, static_cast<size_t>(width) * sizeof(float));
        const int64_t share = rows / parts, extra = rows % parts;
        const int64_t begin = part * share + std::min(part, extra);
        run(work, partial, begin, begin + share + (part < extra ? 1 : 0));
      }
    });
    const auto reduce = RUDA_HOST(sum_partials);
    parallel_for(0, width, std::max<int64_t>(256, 16384 / parts),
                 [&](int64_t begin, int64_t end, int32_t) {
                   reduce(partials.get(), parts, width, args.dweight->data, args.dweight->dtype,
                          begin, end);
                 });
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_normalization(ruda_error* error) {
  RUDA_TRY(register_kernel("rms_norm.forward", "ruda-dnn", rms_norm_forward_args_layout, forward,
                           error));
  return register_kernel("rms_norm.backward", "ruda-dnn", rms_norm_backward_args_layout, backward,
                         error);
}

}  // namespace ruda
