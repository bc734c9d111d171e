#include "philox.h"

#include "../runtime.h"

#include <cmath>

namespace ruda_torch {

namespace {

void fill_baseline(uint64_t seed, uint64_t first, int64_t groups, uint32_t* words) {
  for (int64_t i = 0; i < groups; ++i) {
    detail::philox_lanes(seed, first + static_cast<uint64_t>(i * kPhiloxLanes), 0,
                         words + i * 4 * kPhiloxLanes);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2"), gnu::optimize("O3")]] void fill_avx2(uint64_t seed, uint64_t first,
                                                            int64_t groups, uint32_t* words) {
  for (int64_t i = 0; i < groups; ++i) {
    detail::philox_lanes(seed, first + static_cast<uint64_t>(i * kPhiloxLanes), 0,
                         words + i * 4 * kPhiloxLanes);
  }
}
#endif

}  // namespace

void philox_fill(uint64_t seed, uint64_t first, int64_t groups, uint32_t* words) {
#if defined(__x86_64__)
  static const bool avx2 = api()->cpu_level() >= 1;
  if (avx2) return fill_avx2(seed, first, groups, words);
#endif
  fill_baseline(seed, first, groups, words);
}

double PhiloxStream::normal() {
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(2.0 * M_PI * uniform());
}

}  // namespace ruda_torch
