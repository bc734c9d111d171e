/* Eight float32 lanes over float32, float16 and bfloat16 storage.
 *
 * Everything lives in the variant's own namespace: the same source is compiled for the baseline and
 * for x86-64-v3, and one shared inline function would let the linker mix the two. */
#ifndef RUDA_BLAS_VECTOR_HPP
#define RUDA_BLAS_VECTOR_HPP

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

static inline vec_bits as_bits(vec value) { return reinterpret_cast<vec_bits>(value); }
static inline vec as_float(vec_bits bits) { return reinterpret_cast<vec>(bits); }

/* The lanes of `yes` where a comparison holds, else those of `no`. */
template <class Mask>
static inline vec_bits select(Mask holds, vec_bits yes, vec_bits no) {
  const vec_bits mask = reinterpret_cast<vec_bits>(holds);
  return (mask & yes) | (~mask & no);
}

/* ---- storage to lanes ---- */

static inline vec load(const float* source) {
  vec value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

static inline vec load(const bfloat16* source) {
  vec_half half;
  std::memcpy(&half, source, sizeof(half));
  return as_float(__builtin_convertvector(half, vec_bits) << 16);
}

static inline vec load(const float16* source) {
  vec_half half;
  std::memcpy(&half, source, sizeof(half));
#if defined(__F16C__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(half));
#else
  const vec_bits wide = __builtin_convertvector(half, vec_bits);
  const vec_bits magnitude = (wide & 0x7fffu) << 13;
  const vec_bits scaled = as_bits(as_float(magnitude) * 0x1p112f);  // rebias, subnormals included
  const vec_bits finite = select(magnitude < 0x0f800000u, scaled, magnitude | 0x7f800000u);
  return as_float(finite | ((wide & 0x8000u) << 16));
#endif
}

/* ---- lanes to storage: one rounding, to nearest even ---- */

static inline void store(float* target, vec value) { std::memcpy(target, &value, sizeof(value)); }

static inline void store(bfloat16* target, vec value) {
  const vec_bits bits = as_bits(value);
  const vec_bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const vec_bits quiet = (bits >> 16) | 0x40u;  // rounding could carry a NaN into infinity
  const vec_half half = __builtin_convertvector(select(value != value, quiet, rounded), vec_half);
  std::memcpy(target, &half, sizeof(half));
}

static inline void store(float16* target, vec value) {
#if defined(__F16C__)
  const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), half);
#else
  float wide[lanes];
  store(wide, value);
  store_floats(wide, target, lanes);
#endif
}

/* Always in the same order. */
static inline float sum_lanes(vec value) {
  return ((value[0] + value[4]) + (value[1] + value[5])) +
         ((value[2] + value[6]) + (value[3] + value[7]));
}

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
