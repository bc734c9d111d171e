/* Cross entropy over rows of float32 logits on the host. */
#include "host.hpp"

#include <cmath>
#include <limits>

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* The largest logit after the bias is added in place. NaN logits are left to the sum. */
float add_bias_and_maximum(float* logits, const float* bias, int64_t classes) {
  const float lowest = -std::numeric_limits<float>::infinity();
  vec top = splat(lowest);
  int64_t i = 0;
  for (; i + lanes <= classes; i += lanes) {
    vec value = load(logits + i);
    if (bias != nullptr) {
      value += load(bias + i);
      store(logits + i, value);
    }
    top = maximum(value, top);
  }
  float largest = lowest;
  for (int lane = 0; lane < lanes; ++lane) largest = top[lane] > largest ? top[lane] : largest;
  for (; i < classes; ++i) {
    if (bias != nullptr) logits[i] += bias[i];
    largest = logits[i] > largest ? logits[i] : largest;
  }
  return largest;
}

/* Sum of e^(logit - largest); with `keep` the terms replace the logits. Float32 within 1024
 * classes, float64 across them: a vocabulary of 100,000 costs no accuracy. */
template <bool keep>
double exponential_sum(float* logits, float largest, int64_t classes) {
  double total = 0.0;
  for (int64_t start = 0; start < classes; start += 1024) {
    const int64_t stop = classes - start < 1024 ? classes : start + 1024;
    vec sum = {};
    int64_t i = start;
    for (; i + lanes <= stop; i += lanes) {
      const vec term = exponential(load(logits + i) - largest);
      if (keep) store(logits + i, term);
      sum += term;
    }
    if (i < stop) {
      const int64_t rest = stop - i;
      const vec term = exponential(load_tail(logits + i, rest) - largest);
      if (keep) store_tail(logits + i, term, rest);
      for (int lane = 0; lane < rest; ++lane) total += term[lane];
    }
    total += sum_lanes(sum);
  }
  return total;
}

}  // namespace

void gather_to_float(const void* source, int32_t dtype, const int64_t* index, int64_t width,
                     float* target, int64_t begin, int64_t end) {
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t row = begin; row < end; ++row) {
      const T* in = static_cast<const T*>(source) + index[row] * width;
      float* out = target + row * width;
      int64_t i = 0;
      for (; i + lanes <= width; i += lanes) store(out + i, load(in + i));
      if (i < width) store_tail(out + i, load_tail(in + i, width - i), width - i);
    }
  });
}

void cross_entropy(const cross_entropy_rows& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* logits = args.logits + row * args.classes;
    const int64_t target = args.target[row];
    const float largest = add_bias_and_maximum(logits, args.bias, args.classes);
    const double chosen = logits[target];
    if (args.gradient) {
      const double sum = exponential_sum<true>(logits, largest, args.classes);
      const float scale = static_cast<float>(1.0 / sum);
      int64_t i = 0;
      for (; i + lanes <= args.classes; i += lanes) store(logits + i, load(logits + i) * scale);
      for (; i < args.classes; ++i) logits[i] *= scale;
      logits[target] -= 1.0f;
      args.losses[row] = (std::log(sum) + largest) - chosen;
    } else {
      const double sum = exponential_sum<false>(logits, largest, args.classes);
      args.losses[row] = (std::log(sum) + largest) - chosen;
    }
  }
}

void add_columns(const float* values, int64_t rows, int64_t width, float* sums, int64_t begin,
                 int64_t end) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = values + row * width;
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) store(sums + i, load(sums + i) + load(in + i));
    for (; i < end; ++i) sums[i] += in[i];
  }
}

}  // namespace ruda::RUDA_VARIANT
