/* LayerNorm's arithmetic on the host: float32 lanes, one rounding on the way out. */
#include "host.hpp"

#include <cmath>

#include <lanes.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* The mean is near + rest: a mean of 1449 rounded to float32 alone would cost values around it half
 * their digits. x - near is exact there. */
struct moments {
  float near;
  float rest;
  float rstd;
};

moments finish(double near, double rest, double variance, double epsilon) {
  return {static_cast<float>(near), static_cast<float>(rest),
          static_cast<float>(1.0 / std::sqrt(variance + epsilon))};
}

/* Without overflow or underflow: the slow way, for the rows that need it. */
template <class T>
moments moments_exact(const T* x, int64_t width, double epsilon) {
  const auto sum = [&](auto&& term) {
    double total = 0.0;
    for_lanes(0, width, [&](int64_t i, auto io) {
      const vec value = io.get(x + i);
      const int64_t count = width - i < lanes ? width - i : lanes;
      for (int64_t lane = 0; lane < count; ++lane) total += term(static_cast<double>(value[lane]));
    });
    return total / static_cast<double>(width);
  };
  const double mean = sum([](double value) { return value; });
  const double variance = sum([mean](double value) { return (value - mean) * (value - mean); });
  const double near = static_cast<float>(mean);
  return finish(near, std::isinf(near) ? 0.0 : mean - near, variance, epsilon);
}

template <class T>
moments moments_of(const T* x, int64_t width, double epsilon) {
  const double count = static_cast<double>(width);
  vec sums[4] = {};
  for_four_lanes(width, [&](int64_t i, int slot, auto io) { sums[slot] += io.get(x + i); });
  const float near = static_cast<float>(sum_lanes(four(sums)) / count);
  vec firsts[4] = {}, squares[4] = {};
  for_four_lanes(width, [&](int64_t i, int slot, auto io) {
    const vec centred = io.keep(io.get(x + i) - near);
    firsts[slot] += centred;
    squares[slot] += centred * centred;
  });
  const float square = sum_lanes(four(squares));
  // Outside this range a float32 square may have overflowed or vanished (1e30, 1e-30, infinities).
  if (!(square == 0.0f || (square > 1e-20f && square < 1e37f))) {
    return moments_exact(x, width, epsilon);
  }
  const double rest = sum_lanes(four(firsts)) / count;
  const double variance = square / count - rest * rest;
  return finish(near, rest, variance > 0.0 ? variance : 0.0, epsilon);
}

template <class T, bool has_weight, bool has_bias, bool streamed>
void forward(const layer_forward_rows& args, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const float* weight = args.weight;
  const float* bias = args.bias;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    T* y = static_cast<T*>(args.y) + row * width;
    const moments m = moments_of(x, width, args.epsilon);
    if (args.mean != nullptr) args.mean[row] = m.near + m.rest;
    if (args.rstd != nullptr) args.rstd[row] = m.rstd;
    for_lanes<streamed>(0, width, [&](int64_t i, auto io) {
      vec value = ((io.get(x + i) - m.near) - m.rest) * m.rstd;
      if constexpr (has_weight) value = value * io.get(weight + i);
      if constexpr (has_bias) value = value + io.get(bias + i);
      io.out(y + i, value);
    });
  }
  if constexpr (streamed) stream_end();
}

/* With c = (x - mean) * rstd for the stored mean, h = c - mean(c) (what the stored mean's rounding
 * left out) and u = grad * weight:
 *   dx = rstd * (u - mean(u) - h * mean(u * h)),  dweight = sum of grad * h,  dbias = sum of grad. */
template <class T, bool has_weight, bool want_dx, bool want_parameters, bool streamed>
void backward(const layer_backward_rows& args, float* partial, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const float* weight = args.weight;
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    const T* grad = static_cast<const T*>(args.grad) + row * width;
    T* dx = want_dx ? static_cast<T*>(args.dx) + row * width : nullptr;
    const float rstd = args.rstd[row], stored = args.mean[row];
    const auto upper = [&](vec wide, int64_t i, auto io) {
      return has_weight ? wide * io.get(weight + i) : wide;
    };
    vec rests[4] = {}, uppers[4] = {}, products[4] = {};
    for_four_lanes(width, [&](int64_t i, int slot, auto io) {
      // Summed before the product with rstd: the same bits whether or not dx is wanted.
      const vec centred = io.keep(io.get(x + i) - stored);
      rests[slot] += centred;
      if constexpr (want_dx) {
        const vec u = upper(io.get(grad + i), i, io);
        uppers[slot] += u;
        products[slot] += u * (centred * rstd);
      }
    });
    const float rest = (sum_lanes(four(rests)) * share) * rstd;
    float upper_mean = 0.0f, product_mean = 0.0f;
    if constexpr (want_dx) {
      const float total = sum_lanes(four(uppers));
      upper_mean = total * share;
      product_mean = (sum_lanes(four(products)) - rest * total) * share;
    }
    for_lanes<streamed>(0, width, [&](int64_t i, auto io) {
      const vec normal = (io.get(x + i) - stored) * rstd - rest;
      const vec wide = io.get(grad + i);
      if constexpr (want_dx) {
        io.out(dx + i, rstd * ((upper(wide, i, io) - upper_mean) - normal * product_mean));
      }
      if constexpr (want_parameters) {
        float* dbias = partial + width;
        io.put(partial + i, io.get(partial + i) + wide * normal);
        io.put(dbias + i, io.get(dbias + i) + wide);
      }
    });
  }
  if constexpr (streamed) stream_end();
}

template <class T, bool has_weight>
void choose_backward(const layer_backward_rows& args, float* partial, int64_t begin, int64_t end) {
  if (args.dx == nullptr) {
    backward<T, has_weight, false, true, false>(args, partial, begin, end);
  } else if (partial == nullptr) {
    args.streamed ? backward<T, has_weight, true, false, true>(args, partial, begin, end)
                  : backward<T, has_weight, true, false, false>(args, partial, begin, end);
  } else {
    args.streamed ? backward<T, has_weight, true, true, true>(args, partial, begin, end)
                  : backward<T, has_weight, true, true, false>(args, partial, begin, end);
  }
}

template <class T, bool streamed>
void choose_forward(const layer_forward_rows& args, int64_t begin, int64_t end) {
  if (args.weight != nullptr) {
    args.bias != nullptr ? forward<T, true, true, streamed>(args, begin, end)
                         : forward<T, true, false, streamed>(args, begin, end);
  } else {
    args.bias != nullptr ? forward<T, false, true, streamed>(args, begin, end)
                         : forward<T, false, false, streamed>(args, begin, end);
  }
}

}  // namespace

void layer_norm_forward(const layer_forward_rows& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    args.streamed ? choose_forward<T, true>(args, begin, end)
                  : choose_forward<T, false>(args, begin, end);
  });
}

void layer_norm_backward(const layer_backward_rows& args, float* partial, int64_t begin,
                         int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.weight != nullptr) {
      choose_backward<T, true>(args, partial, begin, end);
    } else {
      choose_backward<T, false>(args, partial, begin, end);
    }
  });
}

}  // namespace ruda::RUDA_VARIANT
