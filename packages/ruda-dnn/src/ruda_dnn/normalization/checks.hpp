/* What the two normalisations check and prepare alike. */
#ifndef RUDA_DNN_NORMALIZATION_CHECKS_HPP
#define RUDA_DNN_NORMALIZATION_CHECKS_HPP

#include <algorithm>
#include <cmath>
#include <cstring>

#include "entries.hpp"
#include "host.hpp"

namespace ruda {

/* weight, bias or a gradient of one: [H] in x's dtype or float32. */
inline int32_t check_parameter(const ruda_view* parameter, const ruda_view* x,
                               const char* operation, const char* name, ruda_error* error) {
  RUDA_TRY(check_dense(parameter, operation, name, error));
  const int64_t width = last_size(*x);
  RUDA_CHECK(parameter->ndim == 1 && parameter->sizes[0] == width, error, RUDA_ERROR_VALUE,
             "[%s] %s must have shape [H] = [%lld], got %s", operation, name,
             static_cast<long long>(width), shape_text(*parameter).c_str());
  if (parameter->dtype == RUDA_FLOAT32) return RUDA_OK;
  return check_dtype(parameter, {RUDA_FLOAT32, x->dtype}, operation, name, error);
}

inline int32_t check_optional_parameter(const ruda_view* parameter, const ruda_view* x,
                                        const char* operation, const char* name,
                                        ruda_error* error) {
  return parameter == nullptr ? static_cast<int32_t>(RUDA_OK)
                              : check_parameter(parameter, x, operation, name, error);
}

inline int32_t check_input(const ruda_view* x, const char* operation, ruda_error* error) {
  RUDA_TRY(check_activation(x, operation, "x", error));
  RUDA_CHECK(x->ndim >= 1 && last_size(*x) >= 1, error, RUDA_ERROR_VALUE,
             "[%s] x: got shape %s, wanted a last axis that is not empty", operation,
             shape_text(*x).c_str());
  return RUDA_OK;
}

/* float32, one number a row. */
inline int32_t check_statistic(const ruda_view* statistic, const ruda_view* x,
                               const char* operation, const char* name, ruda_error* error) {
  RUDA_TRY(check_dense(statistic, operation, name, error));
  RUDA_TRY(check_dtype(statistic, {RUDA_FLOAT32}, operation, name, error));
  return check_shape(statistic, {row_count(*x)}, operation, name, error);
}

inline int32_t check_epsilon(double epsilon, const char* operation, ruda_error* error) {
  RUDA_CHECK(std::isfinite(epsilon) && static_cast<float>(epsilon) > 0.0f &&
                 std::isfinite(static_cast<float>(epsilon)),
             error, RUDA_ERROR_VALUE,
             "[%s] epsilon: got %g, wanted a number that is positive and finite in float32",
             operation, epsilon);
  return RUDA_OK;
}

inline int32_t check_parts(int64_t parts, const char* operation, ruda_error* error) {
  RUDA_CHECK(parts >= 0, error, RUDA_ERROR_VALUE,
             "[%s] parts: got %lld, wanted 0 (chosen by the row count) or more", operation,
             static_cast<long long>(parts));
  return RUDA_OK;
}

/* A parameter as float32: the caller's memory, or a copy in `storage`. */
inline const float* as_float32(const ruda_view* parameter, scratch<float>& storage) {
  if (parameter == nullptr) return nullptr;
  if (parameter->dtype == RUDA_FLOAT32) return data<const float>(*parameter);
  storage = scratch<float>(parameter->sizes[0]);
  RUDA_HOST(widen_to_float)(parameter->data, parameter->dtype, storage.get(), parameter->sizes[0]);
  return storage.get();
}

/* Rows a part of a parallel loop gets: about 16,384 elements. */
inline int64_t row_grain(int64_t width) { return grain_for(width, 16384); }

/* Parts of a parameter's gradient; `wanted` 0 leaves them to the row count. */
inline int64_t part_count(int64_t rows, int64_t wanted) {
  const int64_t parts = wanted != 0 ? wanted : std::clamp<int64_t>((rows + 31) / 32, 1, 128);
  return std::max<int64_t>(1, std::min(parts, rows));
}

/* Sums of rows in float32 parts: rows(partial, begin, end) adds consecutive rows to partial[stride].
 * The parts follow from the row count alone, so the order of the sum does not know the threads. */
class row_partials {
 public:
  template <class F>
  row_partials(int64_t rows, int64_t stride, int64_t wanted, F&& add_rows)
      : parts_(part_count(rows, wanted)), stride_(stride), partials_(parts_ * stride) {
    parallel_for(0, parts_, 1, [&](int64_t first, int64_t last, int32_t) {
      for (int64_t part = first; part < last; ++part) {
        float* partial = partials_.get() + part * stride;
        std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
        const int64_t share = rows / parts_, extra = rows % parts_;
        const int64_t begin = part * share + std::min(part, extra);
        add_rows(partial, begin, begin + share + (part < extra ? 1 : 0));
      }
    });
  }

  /* target[H] = the sum of columns offset..offset + H of the parts, in order. */
  void sum_to(const ruda_view& target, int64_t offset) const {
    const auto reduce = RUDA_HOST(sum_partials);
    parallel_for(0, target.sizes[0], std::max<int64_t>(256, 16384 / parts_),
                 [&](int64_t begin, int64_t end, int32_t) {
                   reduce(partials_.get() + offset, parts_, stride_, target.data, target.dtype,
                          begin, end);
                 });
  }

 private:
  int64_t parts_;
  int64_t stride_;
  scratch<float> partials_;
};

int32_t register_layer_norm(ruda_error* error);

}  // namespace ruda

#endif
