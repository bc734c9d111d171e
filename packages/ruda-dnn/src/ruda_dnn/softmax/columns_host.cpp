/* Softmax and its logarithm over an axis that is not the last: lanes run over the inner index, and
 * every lane has its own maximum and sum. */
#include "host.hpp"

#include <cmath>
#include <limits>

#include <lanes.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

constexpr int64_t columns = softmax_columns;
constexpr float lowest = -std::numeric_limits<float>::infinity();

/* A row of up to `columns` numbers, one for each column of a block. */
struct column_row {
  alignas(32) float values[columns];
  float* at(int64_t i) { return values + i; }
};

inline vec natural_logarithm(vec value) {
  for (int lane = 0; lane < lanes; ++lane) value[lane] = std::log(value[lane]);
  return value;
}

template <class T, bool logarithm>
void forward_block(const T* x, T* y, int64_t count, int64_t inner, int64_t width) {
  column_row highest, sums;
  for_lanes(0, columns, [&](int64_t i, auto io) {
    io.put(highest.at(i), splat(lowest));
    io.put(sums.at(i), vec{});
  });
  for (int64_t k = 0; k < count; ++k) {
    for_lanes(0, width, [&](int64_t i, auto io) {
      io.put(highest.at(i), greater(io.get(x + k * inner + i), io.get(highest.at(i))));
    });
  }
  for (int64_t k = 0; k < count; ++k) {
    for_lanes(0, width, [&](int64_t i, auto io) {
      const vec value = exponential(io.get(x + k * inner + i) - io.get(highest.at(i)));
      io.put(sums.at(i), io.get(sums.at(i)) + value);
    });
  }
  if constexpr (logarithm) {
    for_lanes(0, width, [&](int64_t i, auto io) {
      io.put(sums.at(i), natural_logarithm(io.get(sums.at(i))));
    });
  }
  for (int64_t k = 0; k < count; ++k) {
    for_lanes(0, width, [&](int64_t i, auto io) {
      const vec value = io.get(x + k * inner + i) - io.get(highest.at(i));
      const vec sum = io.get(sums.at(i));
      io.put(y + k * inner + i, logarithm ? value - sum : exponential(value) / sum);
    });
  }
}

template <class T, bool logarithm>
void backward_block(const T* grad, const T* y, T* dx, int64_t count, int64_t inner,
                    int64_t width) {
  column_row sums;
  for_lanes(0, columns, [&](int64_t i, auto io) { io.put(sums.at(i), vec{}); });
  for (int64_t k = 0; k < count; ++k) {
    for_lanes(0, width, [&](int64_t i, auto io) {
      const vec g = io.get(grad + k * inner + i);
      io.put(sums.at(i),
             io.get(sums.at(i)) + (logarithm ? g : g * io.get(y + k * inner + i)));
    });
  }
  for (int64_t k = 0; k < count; ++k) {
    for_lanes(0, width, [&](int64_t i, auto io) {
      const vec g = io.get(grad + k * inner + i);
      const vec value = io.get(y + k * inner + i);
      const vec sum = io.get(sums.at(i));
      io.put(dx + k * inner + i, logarithm ? g - exponential(value) * sum : value * (g - sum));
    });
  }
}

/* run(offset of the block's first element, columns of the block) for blocks begin..end. */
template <class F>
void for_blocks(const softmax_rows& args, int64_t begin, int64_t end, F&& run) {
  const int64_t blocks = (args.inner + columns - 1) / columns;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t outer = block / blocks, first = (block % blocks) * columns;
    const int64_t rest = args.inner - first;
    run(outer * args.count * args.inner + first, rest < columns ? rest : columns);
  }
}

template <class T, bool logarithm>
void forward(const softmax_rows& args, int64_t begin, int64_t end) {
  for_blocks(args, begin, end, [&](int64_t offset, int64_t width) {
    forward_block<T, logarithm>(static_cast<const T*>(args.x) + offset,
                                static_cast<T*>(args.y) + offset, args.count, args.inner, width);
  });
}

template <class T, bool logarithm>
void backward(const softmax_rows& args, int64_t begin, int64_t end) {
  for_blocks(args, begin, end, [&](int64_t offset, int64_t width) {
    backward_block<T, logarithm>(static_cast<const T*>(args.grad) + offset,
                                 static_cast<const T*>(args.y) + offset,
                                 static_cast<T*>(args.dx) + offset, args.count, args.inner, width);
  });
}

}  // namespace

void softmax_forward_columns(const softmax_rows& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    args.logarithm ? forward<T, true>(args, begin, end) : forward<T, false>(args, begin, end);
  });
}

void softmax_backward_columns(const softmax_rows& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    args.logarithm ? backward<T, true>(args, begin, end) : backward<T, false>(args, begin, end);
  });
}

}  // namespace ruda::RUDA_VARIANT
