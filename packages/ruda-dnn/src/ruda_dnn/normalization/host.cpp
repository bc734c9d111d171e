/* RMSNorm's arithmetic on the host: float32 lanes, one rounding on the way out. */
#include "host.hpp"

#include <cmath>

#include <lanes.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* Sum of squares without overflow or underflow: the slow way, for the rows that need it. */
template <class T>
double square_sum_exact(const T* x, int64_t width) {
  double total = 0.0;
  for_lanes(0, width, [&](int64_t i, auto io) {
    const vec value = io.get(x + i);
    for (int lane = 0; lane < lanes; ++lane) {
      const double wide = value[lane];
      total += wide * wide;
    }
  });
  return total;
}

template <class T>
double square_sum(const T* x, int64_t width) {
  vec sums[4] = {};
  for_four_lanes(width, [&](int64_t i, int slot, auto io) {
    const vec value = io.get(x + i);
    sums[slot] += value * value;
  });
  const float total = sum_lanes(four(sums));
  // Outside this range a float32 square may have overflowed or vanished (1e30, 1e-30, infinities).
  if (total > 1e-20f && total < 1e37f) return total;
  return square_sum_exact(x, width);
}

template <class T, bool streamed>
void forward(const rms_forward_rows& args, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const float* weight = args.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    T* y = static_cast<T*>(args.y) + row * width;
    const double mean = square_sum(x, width) / static_cast<double>(width);
    const float rstd = static_cast<float>(1.0 / std::sqrt(mean + args.epsilon));
    if (args.rstd != nullptr) args.rstd[row] = rstd;
    if (weight == nullptr) {
      for_lanes<streamed>(0, width,
                          [&](int64_t i, auto io) { io.out(y + i, io.get(x + i) * rstd); });
    } else {
      for_lanes<streamed>(0, width, [&](int64_t i, auto io) {
        io.out(y + i, (io.get(x + i) * rstd) * io.get(weight + i));
      });
    }
  }
  if constexpr (streamed) stream_end();
}

/* With h = x * rstd and u = grad * weight:  dx = rstd * (u - h * mean(u * h)),  dweight = sum of
 * grad * h. Nothing divides by the weight, and no power of rstd above the first appears. */
template <class T, bool has_weight, bool want_dx, bool want_weight, bool streamed>
void backward(const rms_backward_rows& args, float* partial, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const float* weight = args.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    const T* grad = static_cast<const T*>(args.grad) + row * width;
    T* dx = want_dx ? static_cast<T*>(args.dx) + row * width : nullptr;
    const float rstd = args.rstd[row];
    const auto upper = [&](vec wide, int64_t i, auto io) {
      return has_weight ? wide * io.get(weight + i) : wide;
    };
    float mean = 0.0f;
    if constexpr (want_dx) {
      vec sums[4] = {};
      for_four_lanes(width, [&](int64_t i, int slot, auto io) {
        sums[slot] += upper(io.get(grad + i), i, io) * (io.get(x + i) * rstd);
      });
      mean = sum_lanes(four(sums)) / static_cast<float>(width);
    }
    for_lanes<streamed>(0, width, [&](int64_t i, auto io) {
      const vec normal = io.get(x + i) * rstd;
      const vec wide = io.get(grad + i);
      if constexpr (want_dx) io.out(dx + i, rstd * (upper(wide, i, io) - normal * mean));
      if constexpr (want_weight) io.put(partial + i, io.get(partial + i) + wide * normal);
    });
  }
  if constexpr (streamed) stream_end();
}

template <class T, bool has_weight>
void choose_backward(const rms_backward_rows& args, float* partial, int64_t begin, int64_t end) {
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

}  // namespace

void rms_norm_forward(const rms_forward_rows& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    args.streamed ? forward<T, true>(args, begin, end) : forward<T, false>(args, begin, end);
  });
}

void rms_norm_backward(const rms_backward_rows& args, float* partial, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.weight != nullptr) {
      choose_backward<T, true>(args, partial, begin, end);
    } else {
      choose_backward<T, false>(args, partial, begin, end);
    }
  });
}

void sum_partials(const float* partials, int64_t parts, int64_t stride, void* target, int32_t dtype,
                  int64_t begin, int64_t end) {
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    T* out = static_cast<T*>(target);
    for_lanes(begin, end, [&](int64_t i, auto io) {
      vec sum = {};
      for (int64_t part = 0; part < parts; ++part) sum += io.get(partials + part * stride + i);
      io.put(out + i, sum);
    });
  });
}

void widen_to_float(const void* source, int32_t dtype, float* target, int64_t count) {
  with_storage(dtype, [&](auto type) {
    using T = decltype(type);
    const T* in = static_cast<const T*>(source);
    for_lanes(0, count, [&](int64_t i, auto io) { io.put(target + i, io.get(in + i)); });
  });
}

}  // namespace ruda::RUDA_VARIANT
