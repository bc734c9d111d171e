#include "host.hpp"

namespace ruda::RUDA_VARIANT {

void scale(float* values, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

float squares(const float* values, int64_t count) { return sum_of_squares(values, count); }

}  // namespace ruda::RUDA_VARIANT
