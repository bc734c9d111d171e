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

static inline vec load(const float* source) {
  vec value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

static inline vec load(const bfloat16* source) {
  typedef uint16_t halves __attribute__((vector_size(16)));
  typedef uint32_t words __attribute__((vector_size(32)));
  halves half;
  std::memcpy(&half, source, sizeof(half));
  return reinterpret_cast<vec>(__builtin_convertvector(half, words) << 16);
}

static inline vec load(const float16* source) {
#if defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
#else
  float wide[lanes];
  load_floats(source, wide, lanes);
  return load(wide);
#endif
}

static inline void store(float* target, vec value) { std::memcpy(target, &value, sizeof(value)); }

template <class Half>
static inline void store(Half* target, vec value) {
#if defined(__F16C__)
  if constexpr (std::is_same_v<Half, float16>) {
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), half);
    return;
  }
#endif
  float wide[lanes];
  store(wide, value);
  store_floats(wide, target, lanes);
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
