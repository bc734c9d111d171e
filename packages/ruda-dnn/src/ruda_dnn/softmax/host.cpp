/* Softmax and its logarithm over the last axis, a row at a time, in float32 lanes. */
#include "host.hpp"

#include <cmath>
#include <limits>

#include <lanes.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

/* Exponentials of a row this long are kept in the second level cache; a longer row's are computed
 * twice. */
constexpr int64_t kept = 8192;

/* A NaN may be lost here: it comes back through the exponentials. */
template <class T>
float row_maximum(const T* x, int64_t count) {
  vec highest[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (int slot = 0; slot < 4; ++slot) {
      highest[slot] = greater(load(x + i + slot * lanes), highest[slot]);
    }
  }
  for (; i + lanes <= count; i += lanes) highest[0] = greater(load(x + i), highest[0]);
  const vec all = greater(greater(highest[0], highest[1]), greater(highest[2], highest[3]));
  float result = all[0];
  for (int lane = 1; lane < lanes; ++lane) result = all[lane] > result ? all[lane] : result;
  for (; i < count; ++i) {
    const float value = to_float(x[i]);
    result = value > result ? value : result;
  }
  return result;
}

/* The sum of e^(x - highest); each goes to kept_values too where it is not null. */
template <class T>
float exponential_sum(const T* x, float highest, float* kept_values, int64_t count) {
  vec sums[4] = {};
  if (kept_values != nullptr) {
    for_four_lanes(count, [&](int64_t i, int slot, auto io) {
      const vec value = exponential(io.get(x + i) - highest);
      io.put(kept_values + i, value);
      sums[slot] += io.keep(value);
    });
  } else {
    for_four_lanes(count, [&](int64_t i, int slot, auto io) {
      sums[slot] += io.keep(exponential(io.get(x + i) - highest));
    });
  }
  return sum_lanes(four(sums));
}

template <class T, bool logarithm, bool streamed>
void forward(const softmax_rows& args, int64_t begin, int64_t end) {
  const int64_t count = args.count;
  alignas(64) float buffer[logarithm ? 1 : kept];
  float* values = !logarithm && count <= kept ? buffer : nullptr;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * count;
    T* y = static_cast<T*>(args.y) + row * count;
    const float highest = row_maximum(x, count);
    const float sum = exponential_sum(x, highest, values, count);
    if constexpr (logarithm) {
      const float shift = std::log(sum);
      for_lanes<streamed>(0, count, [&](int64_t i, auto io) {
        io.out(y + i, (io.get(x + i) - highest) - shift);
      });
    } else {
      if (values != nullptr) {
        for_lanes<streamed>(0, count, [&](int64_t i, auto io) {
          io.out(y + i, io.get(values + i) / sum);
        });
      } else {
        for_lanes<streamed>(0, count, [&](int64_t i, auto io) {
          io.out(y + i, exponential(io.get(x + i) - highest) / sum);
        });
      }
    }
  }
  if constexpr (streamed) stream_end();
}

/* softmax: dx = y * (g - sum(g * y)); log_softmax: dx = g - e^y * sum(g). */
template <class T, bool logarithm, bool streamed>
void backward(const softmax_rows& args, int64_t begin, int64_t end) {
  const int64_t count = args.count;
  for (int64_t row = begin; row < end; ++row) {
    const T* grad = static_cast<const T*>(args.grad) + row * count;
    const T* y = static_cast<const T*>(args.y) + row * count;
    T* dx = static_cast<T*>(args.dx) + row * count;
    vec sums[4] = {};
    for_four_lanes(count, [&](int64_t i, int slot, auto io) {
      sums[slot] += logarithm ? io.get(grad + i) : io.get(grad + i) * io.get(y + i);
    });
    const float sum = sum_lanes(four(sums));
    for_lanes<streamed>(0, count, [&](int64_t i, auto io) {
      const vec g = io.get(grad + i);
      const vec value = io.get(y + i);
      io.out(dx + i, logarithm ? g - exponential(value) * sum : value * (g - sum));
    });
  }
  if constexpr (streamed) stream_end();
}

/* Calls run(storage type, logarithm, streamed) with the last two as constants. */
template <class F>
void with_choices(const softmax_rows& args, F&& run) {
  with_storage(args.dtype, [&](auto type) {
    if (args.logarithm) {
      args.streamed ? run(type, std::true_type(), std::true_type())
                    : run(type, std::true_type(), std::false_type());
    } else {
      args.streamed ? run(type, std::false_type(), std::true_type())
                    : run(type, std::false_type(), std::false_type());
    }
  });
}

}  // namespace

void softmax_forward_rows(const softmax_rows& args, int64_t begin, int64_t end) {
  with_choices(args, [&](auto type, auto logarithm, auto streamed) {
    forward<decltype(type), logarithm.value, streamed.value>(args, begin, end);
  });
}

void softmax_backward_rows(const softmax_rows& args, int64_t begin, int64_t end) {
  with_choices(args, [&](auto type, auto logarithm, auto streamed) {
    backward<decltype(type), logarithm.value, streamed.value>(args, begin, end);
  });
}

}  // namespace ruda::RUDA_VARIANT
