/* Rotary position embedding on the host: pairs (i, i + R/2) of a head's first R features. */
#include "host.hpp"

#include <cstring>

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* One head. The map's matrix is [c -s; t d] for every pair, or its transpose. */
template <class T, class C, bool transposed>
inline void rotate_head(const T* x, const C* cos, const C* sin, T* y, int64_t half) {
  const auto pairs = [=](int64_t i, auto get, auto put) {
    const vec a = get(x + i), b = get(x + half + i);
    const vec c = get(cos + i), d = get(cos + half + i);
    const vec s = get(sin + i), t = get(sin + half + i);
    if constexpr (transposed) {
      put(y + i, a * c + b * t);
      put(y + half + i, b * d - a * s);
    } else {
      put(y + i, a * c - b * s);
      put(y + half + i, b * d + a * t);
    }
  };
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    pairs(i, [](auto* p) { return load(p); }, [](auto* p, vec v) { store(p, v); });
  }
  if (i < half) {
    const int64_t rest = half - i;
    pairs(i, [rest](auto* p) { return load_tail(p, rest); },
          [rest](auto* p, vec v) { store_tail(p, v, rest); });
  }
}

template <class T, class C, bool transposed>
void run(const rotary_tokens& args, int64_t begin, int64_t end) {
  const int64_t features = args.features, rotated = args.rotated;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t batch = token / args.length, place = token % args.length;
    const T* x = static_cast<const T*>(args.x) + batch * args.strides[0] + place * args.strides[1];
    const int64_t row = batch * args.table_batch + place * rotated;
    const C* cos = static_cast<const C*>(args.cos) + row;
    const C* sin = static_cast<const C*>(args.sin) + row;
    T* y = static_cast<T*>(args.y) + token * args.heads * features;
    for (int64_t head = 0; head < args.heads; ++head, x += args.strides[2], y += features) {
      rotate_head<T, C, transposed>(x, cos, sin, y, rotated / 2);
      if (rotated < features) {
        std::memcpy(y + rotated, x + rotated,
                    static_cast<size_t>(features - rotated) * sizeof(T));
      }
    }
  }
}

template <class T, class C>
void choose(const rotary_tokens& args, int64_t begin, int64_t end) {
  if (args.transposed) {
    run<T, C, true>(args, begin, end);
  } else {
    run<T, C, false>(args, begin, end);
  }
}

}  // namespace

void rotate(const rotary_tokens& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.table_dtype == args.dtype) {
      choose<T, T>(args, begin, end);
    } else {
      choose<T, float>(args, begin, end);
    }
  });
}

}  // namespace ruda::RUDA_VARIANT
