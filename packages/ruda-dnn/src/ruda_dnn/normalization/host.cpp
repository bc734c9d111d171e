/* RMSNorm's arithmetic on the host: float32 lanes, one rounding on the way out. */
#include "host.hpp"

#include <cmath>

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* Sum of squares without overflow or underflow: the slow way, for the rows that need it. */
template <class T>
double square_sum_exact(const T* x, int64_t width) {
  double total = 0.0;
  for (int64_t i = 0; i < width; i += lanes) {
    const vec value = width - i < lanes ? load_tail(x + i, width - i) : load(x + i);
    for (int lane = 0; lane < lanes; ++lane) {
      const double wide = value[lane];
      total += wide * wide;
    }
  }
  return total;
}

template <class T>
double square_sum(const T* x, int64_t width) {
  vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    for (int part = 0; part < 4; ++part) {
      const vec value = load(x + i + part * lanes);
      sums[part] += value * value;
    }
  }
  for (; i + lanes <= width; i += lanes) {
    const vec value = load(x + i);
    sums[0] += value * value;
  }
  if (i < width) {
    const vec value = load_tail(x + i, width - i);
    sums[1] += value * value;
  }
  const float total = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  // Outside this range a float32 square may have overflowed or vanished (1e30, 1e-30, infinities).
  if (total > 1e-20f && total < 1e37f) return total;
  return square_sum_exact(x, width);
}

template <class T>
void forward(const rms_forward_rows& args, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    T* y = static_cast<T*>(args.y) + row * width;
    const double mean = square_sum(x, width) / static_cast<double>(width);
    const float rstd = static_cast<float>(1.0 / std::sqrt(mean + args.epsilon));
    if (args.rstd != nullptr) args.rstd[row] = rstd;
    int64_t i = 0;
    if (args.weight == nullptr) {
      for (; i + lanes <= width; i += lanes) store(y + i, load(x + i) * rstd);
      if (i < width) store_tail(y + i, load_tail(x + i, width - i) * rstd, width - i);
    } else {
      const float* weight = args.weight;
      for (; i + lanes <= width; i += lanes) {
        store(y + i, (load(x + i) * rstd) * load(weight + i));
      }
      if (i < width) {
        const int64_t rest = width - i;
        store_tail(y + i, (load_tail(x + i, rest) * rstd) * load_tail(weight + i, rest), rest);
      }
    }
  }
}

/* With h = x * rstd and u = grad * weight:  dx = rstd * (u - h * mean(u * h)),  dweight = sum of
 * grad * h. Nothing divides by the weight, and no power of rstd above the first appears. */
template <class T, bool has_weight>
void backward(const rms_backward_rows& args, float* partial, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const float* weight = args.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    const T* grad = static_cast<const T*>(args.grad) + row * width;
    const float rstd = args.rstd[row];
    if (args.dx != nullptr) {
      vec sums[2] = {};
      int64_t i = 0;
      for (int side = 0; i + lanes <= width; i += lanes, side ^= 1) {
        const vec product = load(grad + i) * (load(x + i) * rstd);
        sums[side] += has_weight ? product * load(weight + i) : product;
      }
      if (i < width) {
        const int64_t rest = width - i;
        const vec product = load_tail(grad + i, rest) * (load_tail(x + i, rest) * rstd);
        sums[0] += has_weight ? product * load_tail(weight + i, rest) : product;
      }
      const float mean = sum_lanes(sums[0] + sums[1]) / static_cast<float>(width);
      T* dx = static_cast<T*>(args.dx) + row * width;
      for (i = 0; i + lanes <= width; i += lanes) {
        const vec normal = load(x + i) * rstd;
        const vec upper = has_weight ? load(grad + i) * load(weight + i) : load(grad + i);
        store(dx + i, rstd * (upper - normal * mean));
      }
      if (i < width) {
        const int64_t rest = width - i;
        const vec normal = load_tail(x + i, rest) * rstd;
        const vec wide = load_tail(grad + i, rest);
        const vec upper = has_weight ? wide * load_tail(weight + i, rest) : wide;
        store_tail(dx + i, rstd * (upper - normal * mean), rest);
      }
    }
    if (partial != nullptr) {
      int64_t i = 0;
      for (; i + lanes <= width; i += lanes) {
        store(partial + i, load(partial + i) + load(grad + i) * (load(x + i) * rstd));
      }
      if (i < width) {
        const int64_t rest = width - i;
        const vec product = load_tail(grad + i, rest) * (load_tail(x + i, rest) * rstd);
        store_tail(partial + i, load_tail(partial + i, rest) + product, rest);
      }
    }
  }
}

}  // namespace

void rms_norm_forward(const rms_forward_rows& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    forward<decltype(type)>(args, begin, end);
  });
}

void rms_norm_backward(const rms_backward_rows& args, float* partial, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.weight != nullptr) {
      backward<T, true>(args, partial, begin, end);
    } else {
      backward<T, false>(args, partial, begin, end);
    }
  });
}

void sum_partials(const float* partials, int64_t parts, int64_t width, void* target, int32_t dtype,
                  int64_t begin, int64_t end) {
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    T* out = static_cast<T*>(target);
    for (int64_t i = begin; i < end; i += lanes) {
      const int64_t rest = end - i < lanes ? end - i : lanes;
      vec sum = {};
      for (int64_t part = 0; part < parts; ++part) {
        const float* row = partials + part * width + i;
        sum += rest < lanes ? load_tail(row, rest) : load(row);
      }
      if (rest < lanes) {
        store_tail(out + i, sum, rest);
      } else {
        store(out + i, sum);
      }
    }
  });
}

void widen_to_float(const void* source, int32_t dtype, float* target, int64_t count) {
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    const T* in = static_cast<const T*>(source);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store(target + i, load(in + i));
    if (i < count) store_tail(target + i, load_tail(in + i, count - i), count - i);
  });
}

}  // namespace ruda::RUDA_VARIANT
