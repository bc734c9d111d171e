/* SiLU times a second operand on the host. */
#include "host.hpp"

#include <type_traits>

#include <lanes.hpp>

namespace ruda::RUDA_VARIANT {
namespace {

/* Vectors worked on side by side. The chain of one sigmoid is 70 cycles long and the scheduler holds
 * two of them; written one step for four vectors at a time, their steps overlap. */
constexpr int together = 4;

/* s = 1 / (1 + e^-x), NaN where x is. Where e^-x would leave float32's range s is 0 or 1. */
template <int count>
inline void sigmoids(const vec (&x)[count], vec (&s)[count]) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  vec shifted[count], r[count], p[count];
  const auto each = [](auto&& step) {
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) step(k);
  };
  each([&](int k) { r[k] = lesser(splat(88.8f), greater(splat(-87.3f), -x[k])); });
  each([&](int k) { shifted[k] = r[k] * 1.44269504088896341f + magic; });
  each([&](int k) { r[k] = r[k] - (shifted[k] - magic) * 0.693359375f; });
  each([&](int k) { r[k] = r[k] - (shifted[k] - magic) * -2.12194440e-4f; });
  each([&](int k) { p[k] = r[k] * 1.9875691500e-4f + 1.3981999507e-3f; });
  each([&](int k) { p[k] = p[k] * r[k] + 8.3334519073e-3f; });
  each([&](int k) { p[k] = p[k] * r[k] + 4.1665795894e-2f; });
  each([&](int k) { p[k] = p[k] * r[k] + 1.6666665459e-1f; });
  each([&](int k) { p[k] = p[k] * r[k] + 5.0000001201e-1f; });
  each([&](int k) { p[k] = p[k] * (r[k] * r[k]) + (r[k] + 1.0f); });
  // 2^n for n of -126 to 127, infinity for 128: the integer is in the lowest bits of `shifted`.
  each([&](int k) {
    p[k] = p[k] * as_float((as_bits(shifted[k]) << 23) + 0x3f800000u) + 1.0f;
  });
  each([&](int k) { s[k] = 1.0f / p[k]; });
}

/* The lower half of every operand here was 0, so that of every NaN is: rounding cannot carry a NaN
 * into infinity, which <ruda/simd.hpp> takes care of at the price of four more operations. */
inline vec_bits rounded_bits(vec value) {
  const vec_bits bits = as_bits(value);
  return bits + (((bits >> 16) & 1u) + 0x7fffu);
}

template <class T>
inline vec rounded_as(vec value, const T* type) { return round_to(value, type); }
inline vec rounded_as(vec value, const bfloat16*) {
  return as_float(rounded_bits(value) & 0xffff0000u);
}

template <class T, class Io>
inline void finish(T* target, vec value, Io io) { io.out(target, value); }
template <class Io>
inline void finish(bfloat16* target, vec value, Io io) {
  // Only the upper half is stored; truncating it again changes nothing.
  io.out_upper(target, rounded_bits(value));
}

/* fn(i, io, number) for groups of `together` vectors, then for single ones and the tail. */
template <bool streamed, class F>
inline void for_groups(int64_t begin, int64_t end, F&& fn) {
  int64_t i = begin;
  for (; i + together * lanes <= end; i += together * lanes) {
    fn(i, whole_lanes<streamed>{}, std::integral_constant<int, together>());
  }
  for_lanes<streamed>(i, end,
                      [&](int64_t k, auto io) { fn(k, io, std::integral_constant<int, 1>()); });
}

template <class T, bool streamed>
void forward(const silu_mul_range& args, int64_t begin, int64_t end) {
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  T* out = static_cast<T*>(args.out);
  for_groups<streamed>(begin, end, [=](int64_t i, auto io, auto number) {
    constexpr int count = number.value;
    vec g[count], s[count];
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) g[k] = io.get(gate + i + k * lanes);
    sigmoids(g, s);
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      const int64_t at = i + k * lanes;
      finish(out + at, rounded_as(g[k] * s[k], out) * io.get(up + at), io);
    }
  });
  if constexpr (streamed) stream_end();
}

/* dup = grad * silu(gate) with the rounded SiLU of the forward pass;
 * dgate = grad * up * s * (1 + gate * (1 - s)),  s = sigmoid(gate). */
template <class T, bool want_gate, bool want_up>
void backward(const silu_mul_range& args, int64_t begin, int64_t end) {
  const T* gate = static_cast<const T*>(args.gate);
  const T* up = static_cast<const T*>(args.up);
  const T* grad = static_cast<const T*>(args.grad);
  T* dgate = static_cast<T*>(args.dgate);
  T* dup = static_cast<T*>(args.dup);
  for_groups<false>(begin, end, [=](int64_t i, auto io, auto number) {
    constexpr int count = number.value;
    vec g[count], s[count];
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) g[k] = io.get(gate + i + k * lanes);
    sigmoids(g, s);
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      const int64_t at = i + k * lanes;
      const vec upper = io.get(grad + at);
      if constexpr (want_gate) {
        const vec slope = s[k] * (1.0f + g[k] * (1.0f - s[k]));
        finish(dgate + at, (upper * io.get(up + at)) * slope, io);
      }
      if constexpr (want_up) finish(dup + at, upper * rounded_as(g[k] * s[k], dup), io);
    }
  });
}

}  // namespace

void silu_mul_forward(const silu_mul_range& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    args.streamed ? forward<T, true>(args, begin, end) : forward<T, false>(args, begin, end);
  });
}

void silu_mul_backward(const silu_mul_range& args, int64_t begin, int64_t end) {
  with_storage(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.dgate != nullptr && args.dup != nullptr) {
      backward<T, true, true>(args, begin, end);
    } else if (args.dgate != nullptr) {
      backward<T, true, false>(args, begin, end);
    } else if (args.dup != nullptr) {
      backward<T, false, true>(args, begin, end);
    }
  });
}

}  // namespace ruda::RUDA_VARIANT
