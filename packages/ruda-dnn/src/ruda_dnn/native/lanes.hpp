/* Loops over a row in whole vectors and a tail, on top of <ruda/simd.hpp>.
 *
 * Each loop calls fn(i, io): io.get(pointer) loads the lanes at pointer, io.put stores them, io.out
 * stores a result that nobody reads soon, io.keep clears the lanes past the end of the row.
 */
#ifndef RUDA_DNN_LANES_HPP
#define RUDA_DNN_LANES_HPP

#include <ruda/simd.hpp>

namespace ruda::RUDA_VARIANT {

/* left < right ? left : right, and the other way round: the right one where either is NaN. */
static inline vec lesser(vec left, vec right) {
#if defined(__AVX__)
  return reinterpret_cast<vec>(
      _mm256_min_ps(reinterpret_cast<__m256>(left), reinterpret_cast<__m256>(right)));
#else
  return select(mask_bits(left < right), left, right);
#endif
}

static inline vec greater(vec left, vec right) {
#if defined(__AVX__)
  return reinterpret_cast<vec>(
      _mm256_max_ps(reinterpret_cast<__m256>(left), reinterpret_cast<__m256>(right)));
#else
  return select(mask_bits(left > right), left, right);
#endif
}

/* Past the caches: the line is not read before it is written. The pointer must be aligned to the
 * vector; end a range of such stores with stream_end(). */
static inline void store_past_caches(float* target, vec value) {
#if defined(__AVX__)
  _mm256_stream_ps(target, reinterpret_cast<__m256>(value));
#else
  store(target, value);
#endif
}

static inline void store_past_caches(void* target, vec_half half) {
#if defined(__AVX__)
  _mm_stream_si128(static_cast<__m128i*>(target), reinterpret_cast<__m128i>(half));
#else
  std::memcpy(target, &half, sizeof(half));
#endif
}

template <class Half>
static inline void store_past_caches(Half* target, vec value) {
  store_past_caches(target, narrow(value, target));
}

static inline void stream_end() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

template <bool streamed>
struct whole_lanes {
  template <class T>
  vec get(const T* source) const { return load(source); }
  template <class T>
  void put(T* target, vec value) const { store(target, value); }
  template <class T>
  void out(T* target, vec value) const {
    if constexpr (streamed) {
      store_past_caches(target, value);
    } else {
      store(target, value);
    }
  }
  /* A bfloat16 result whose rounding is done: the upper halves. */
  void out_upper(bfloat16* target, vec_bits bits) const {
    const vec_half half = upper_halves(bits);
    if constexpr (streamed) {
      store_past_caches(static_cast<void*>(target), half);
    } else {
      std::memcpy(target, &half, sizeof(half));
    }
  }
  vec keep(vec value) const { return value; }
};

struct some_lanes {
  int64_t count;
  template <class T>
  vec get(const T* source) const { return load_tail(source, count); }
  template <class T>
  void put(T* target, vec value) const { store_tail(target, value, count); }
  template <class T>
  void out(T* target, vec value) const { store_tail(target, value, count); }
  void out_upper(bfloat16* target, vec_bits bits) const {
    const vec_half half = upper_halves(bits);
    std::memcpy(target, &half, static_cast<size_t>(count) * sizeof(bfloat16));
  }
  vec keep(vec value) const {
    const vec_bits lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return as_float(as_bits(value) & mask_bits(lane < static_cast<uint32_t>(count)));
  }
};

template <bool streamed = false, class F>
static inline void for_lanes(int64_t begin, int64_t end, F&& fn) {
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) fn(i, whole_lanes<streamed>{});
  if (i < end) fn(i, some_lanes{end - i});
}

/* fn(i, slot, io) with slot 0..3 in turn: four sums at once, always in the same order. */
template <class F>
static inline void for_four_lanes(int64_t width, F&& fn) {
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    for (int slot = 0; slot < 4; ++slot) fn(i + slot * lanes, slot, whole_lanes<false>{});
  }
  for (; i + lanes <= width; i += lanes) fn(i, 0, whole_lanes<false>{});
  if (i < width) fn(i, 1, some_lanes{width - i});
}

static inline vec four(const vec* sums) { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }

}  // namespace ruda::RUDA_VARIANT

#endif
