/* Eight float32 lanes over float32, float16 and bfloat16 storage, for the packages' host arithmetic.
 *
 * Everything lives in the variant's own namespace: the same source is compiled for the baseline and
 * for x86-64-v3, and one shared inline function would let the linker mix the two.
 */
#ifndef RUDA_SIMD_HPP
#define RUDA_SIMD_HPP

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <ruda/abi.h>
#include <ruda/convert.hpp>

namespace ruda::RUDA_VARIANT {

constexpr int64_t lanes = 8;
typedef float vec __attribute__((vector_size(32)));
typedef uint32_t vec_bits __attribute__((vector_size(32)));
typedef uint16_t vec_half __attribute__((vector_size(16)));

static inline vec splat(float value) {
  return vec{value, value, value, value, value, value, value, value};
}
static inline vec_bits as_bits(vec value) { return reinterpret_cast<vec_bits>(value); }
static inline vec as_float(vec_bits bits) { return reinterpret_cast<vec>(bits); }
/* mask lanes are all ones or all zeros. */
static inline vec_bits select(vec_bits mask, vec_bits yes, vec_bits no) {
  return (mask & yes) | (~mask & no);
}
static inline vec select(vec_bits mask, vec yes, vec no) {
  return as_float(select(mask, as_bits(yes), as_bits(no)));
}
template <class Mask>
static inline vec_bits mask_bits(Mask mask) {
  return reinterpret_cast<vec_bits>(mask);
}

/* ---- storage to lanes ---- */

static inline vec load(const float* source) {
  vec value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

static inline vec widen(vec_half half, const bfloat16*) {
#if defined(__AVX2__)  // GCC converts the two halves apart
  const __m256i wide = _mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half));
  return reinterpret_cast<vec>(_mm256_slli_epi32(wide, 16));
#else
  return as_float(__builtin_convertvector(half, vec_bits) << 16);
#endif
}

static inline vec widen(vec_half half, const float16*) {
#if defined(__F16C__)
  return reinterpret_cast<vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(half)));
#else
  const vec_bits wide = __builtin_convertvector(half, vec_bits);
  const vec_bits magnitude = (wide & 0x7fffu) << 13;
  const vec_bits scaled = as_bits(as_float(magnitude) * 0x1p112f);  // rebias, subnormals included
  const vec_bits special = mask_bits((wide & 0x7c00u) == 0x7c00u);
  return as_float(select(special, magnitude | 0x7f800000u, scaled) | ((wide & 0x8000u) << 16));
#endif
}

template <class Half>
static inline vec load(const Half* source) {
  vec_half half;
  std::memcpy(&half, source, sizeof(half));
  return widen(half, source);
}

/* The first `count` (below 8) lanes; the others are 0. */
template <class T>
static inline vec load_tail(const T* source, int64_t count) {
  T padded[lanes] = {};
  std::memcpy(padded, source, static_cast<size_t>(count) * sizeof(T));
  return load(padded);
}

/* ---- lanes to storage: one rounding, to nearest even ---- */

static inline void store(float* target, vec value) { std::memcpy(target, &value, sizeof(value)); }

/* bfloat16's bits in the upper half of each lane; the lower half is 0. */
static inline vec_bits rounded_bfloat16(vec value) {
  const vec_bits bits = as_bits(value);
  const vec_bits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  // Rounding could carry a NaN into infinity: keep its upper bits and make it quiet.
  return select(mask_bits(value != value), bits | 0x400000u, rounded) & 0xffff0000u;
}

/* The upper halves of the lanes. */
static inline vec_half upper_halves(vec_bits bits) {
  const vec_bits upper = bits >> 16;
#if defined(__AVX2__)  // GCC converts the two halves apart
  const __m256i wide = reinterpret_cast<__m256i>(upper);
  return reinterpret_cast<vec_half>(
      _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)));
#else
  return __builtin_convertvector(upper, vec_half);
#endif
}

static inline vec_half narrow(vec value, const bfloat16*) {
  return upper_halves(rounded_bfloat16(value));
}

static inline vec_half narrow(vec value, const float16*) {
#if defined(__F16C__)
  return reinterpret_cast<vec_half>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
  const vec_bits bits = as_bits(value);
  const vec_bits magnitude = bits & 0x7fffffffu;
  const vec_bits normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 lines the half's last subnormal bit up with the float's last bit.
  const vec_bits subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000u;
  const vec_bits zero = {};
  const vec_bits huge =
      select(mask_bits(magnitude > 0x7f800000u), zero + 0x7e00u, zero + 0x7c00u);
  vec_bits half = select(mask_bits(magnitude < 0x38800000u), subnormal, normal);
  half = select(mask_bits(magnitude >= 0x47800000u), huge, half);
  return __builtin_convertvector(half | ((bits >> 16) & 0x8000u), vec_half);
#endif
}

template <class Half>
static inline void store(Half* target, vec value) {
  const vec_half half = narrow(value, target);
  std::memcpy(target, &half, sizeof(half));
}

template <class T>
static inline void store_tail(T* target, vec value, int64_t count) {
  T padded[lanes];
  store(padded, value);
  std::memcpy(target, padded, static_cast<size_t>(count) * sizeof(T));
}

/* `value` as T would hold it. */
static inline vec round_to(vec value, const float*) { return value; }
static inline vec round_to(vec value, const float16* type) {
  return widen(narrow(value, type), type);
}
static inline vec round_to(vec value, const bfloat16*) {
  return as_float(rounded_bfloat16(value));
}

/* ---- arithmetic ---- */

static inline vec maximum(vec left, vec right) {
  return select(mask_bits(left > right), left, right);
}

static inline vec square_root(vec value) {
#if defined(__AVX__)
  return reinterpret_cast<vec>(_mm256_sqrt_ps(reinterpret_cast<__m256>(value)));
#else
  vec root;
  for (int lane = 0; lane < lanes; ++lane) root[lane] = __builtin_sqrtf(value[lane]);
  return root;
#endif
}

/* Always in the same order. */
static inline float sum_lanes(vec value) {
  return ((value[0] + value[4]) + (value[1] + value[5])) +
         ((value[2] + value[6]) + (value[3] + value[7]));
}

/* e^x = fraction * 2^exponent to about one unit in the last place, for x from -88 to 89. */
struct exponential_parts {
  vec fraction;      /* from 0.7 to 1.5 */
  vec_bits exponent; /* in two's complement */
};

static inline exponential_parts split_exponential(vec x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const vec shifted = x * 1.44269504088896341f + magic;
  const vec count = shifted - magic;
  vec r = x - count * 0.693359375f;
  r = r - count * -2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {p * (r * r) + r + 1.0f, as_bits(shifted) - 0x4b400000u};
}

/* e^x to about one unit in the last place. NaN stays NaN; results below the smallest normal float
 * are 0, so that e^-inf is 0 and no denormal slows a softmax down. */
static inline vec exponential(vec x) {
  const auto [fraction, exponent] = split_exponential(select(
      mask_bits(x > 88.8f), splat(88.8f), select(mask_bits(x < -87.3f), splat(-87.3f), x)));
  // 2^n in two factors: n reaches 128, which one float exponent cannot hold.
  typedef int32_t vec_int __attribute__((vector_size(32)));
  const vec_int n = reinterpret_cast<vec_int>(exponent);
  const vec_int half = n >> 1;
  const vec low = reinterpret_cast<vec>((half + 127) << 23);
  const vec high = reinterpret_cast<vec>((n - half + 127) << 23);
  return select(mask_bits(x < -87.3f), splat(0.0f), fraction * low * high);
}

/* 1 / (1 + e^-x). */
static inline vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* `count` values of any storage type to float32, and back with one rounding each. */
template <class T>
static inline void load_row(const T* source, float* target, int64_t count) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(target + i, load(source + i));
  for (; i < count; ++i) target[i] = to_float(source[i]);
}

template <class T>
static inline void store_row(const float* source, T* target, int64_t count) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(target + i, load(source + i));
  for (; i < count; ++i) target[i] = from_float<T>(source[i]);
}

/* Calls fn(T()) with the storage type that `dtype` names. */
template <class F>
static inline void with_storage(int32_t dtype, F&& fn) {
  if (dtype == RUDA_FLOAT16) {
    fn(float16());
  } else if (dtype == RUDA_BFLOAT16) {
    fn(bfloat16());
  } else {
    fn(float());
  }
}

}  // namespace ruda::RUDA_VARIANT

#endif
