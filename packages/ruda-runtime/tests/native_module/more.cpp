#include "host.hpp"

namespace ruda::RUDA_VARIANT {

int uses_avx2() {
#if defined(__AVX2__)
  const double values[4] = {1, 0, 0, 0};
  return static_cast<int>(sum_of_squares(values, 4));
#else
  return 0;
#endif
}

}  // namespace ruda::RUDA_VARIANT
