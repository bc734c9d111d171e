// float16 and bfloat16 as storage types. Arithmetic is done in float32: load, compute, round once
// (to nearest, ties to even) on the way out. Every function is forced inline, so a source compiled for
// x86-64-v3 uses its conversion instructions and never shares code with the baseline.
#ifndef RUDA_CONVERT_HPP
#define RUDA_CONVERT_HPP

#include <cstdint>
#include <cstring>

#define RUDA_INLINE inline __attribute__((always_inline))

namespace ruda {

struct bfloat16 {
  uint16_t bits;
};

struct float16 {
  uint16_t bits;
};

namespace detail {
template <class To, class From>
RUDA_INLINE To bits_as(From value) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

#if defined(__aarch64__)
using native_half = __fp16;  // GCC has _Float16 in C++ for AArch64 from 13 on
#elif defined(__F16C__)
using native_half = _Float16;
#endif
}  // namespace detail

RUDA_INLINE float to_float(float value) noexcept { return value; }
RUDA_INLINE float to_float(double value) noexcept { return static_cast<float>(value); }

RUDA_INLINE float to_float(bfloat16 value) noexcept {
  return detail::bits_as<float>(static_cast<uint32_t>(value.bits) << 16);
}

RUDA_INLINE float to_float(float16 value) noexcept {
#if defined(__F16C__) || defined(__aarch64__)
  return static_cast<float>(detail::bits_as<detail::native_half>(value.bits));
#else
  // Branch-free, so that loops over it vectorise. The exponent is rebased by a multiplication, which
  // also normalises subnormals; infinity and NaN get the top exponent back afterwards.
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const float scaled = detail::bits_as<float>(magnitude) * 0x1p112f;
  const uint32_t special = (value.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return detail::bits_as<float>(detail::bits_as<uint32_t>(scaled) | special | sign);
#endif
}

template <class T>
RUDA_INLINE T from_float(float value) noexcept;

template <>
RUDA_INLINE float from_float<float>(float value) noexcept {
  return value;
}

template <>
RUDA_INLINE double from_float<double>(float value) noexcept {
  return value;
}

template <>
RUDA_INLINE bfloat16 from_float<bfloat16>(float value) noexcept {
  const uint32_t bits = detail::bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;  // rounding could carry a NaN into infinity
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? quiet : rounded)};
}

template <>
RUDA_INLINE float16 from_float<float16>(float value) noexcept {
#if defined(__F16C__) || defined(__aarch64__)
  return {detail::bits_as<uint16_t>(static_cast<detail::native_half>(value))};
#else
  const uint32_t bits = detail::bits_as<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits of the sum.
  const float shifted = detail::bits_as<float>(magnitude) + 0.5f;
  const uint32_t subnormal = detail::bits_as<uint32_t>(shifted) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and above round to infinity
  result = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x3ffu)) : result;
  return {static_cast<uint16_t>(result | sign)};
#endif
}

// Rows of values; restrict lets the loops vectorise.
template <class T>
RUDA_INLINE void load_floats(const T* __restrict source, float* __restrict target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] = to_float(source[i]);
}

template <class T>
RUDA_INLINE void store_floats(const float* __restrict source, T* __restrict target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] = from_float<T>(source[i]);
}

}  // namespace ruda

#endif  // RUDA_CONVERT_HPP
