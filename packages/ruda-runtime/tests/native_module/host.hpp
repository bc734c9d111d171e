#pragma once

#include <cstdint>

// A template that variants and the entry use out of line: one copy of each instance survives the
// link. float: both variants and the entry; double: the v3 variant and the entry only.
template <class T>
__attribute__((noipa)) T sum_of_squares(const T* values, int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return sum;
}

namespace ruda::baseline {
void scale(float* values, int64_t count, float factor);
float squares(const float* values, int64_t count);
int uses_avx2();
}  // namespace ruda::baseline

#if RUDA_HAS_V3
namespace ruda::v3 {
void scale(float* values, int64_t count, float factor);
float squares(const float* values, int64_t count);
int uses_avx2();
}  // namespace ruda::v3
#endif
