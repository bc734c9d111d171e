/* NF4 weights decoded straight into the panels of the packed products. */
#ifndef RUDA_BLAS_NF4_PANELS_HPP
#define RUDA_BLAS_NF4_PANELS_HPP

#include <cstdint>

#include "../native/packed.hpp"
#include "host.hpp"

namespace ruda {

RUDA_HOST_VARIANTS(
  /* Columns of W^T: element (p, j) is W[row + j, col + p]. */
  void nf4_pack_transposed(const blas::nf4_weight& weight, int64_t col, int64_t count, int64_t row,
                           int64_t cols, blas::panels to);

  /* Columns of W: element (p, j) is W[row + p, col + j]. */
  void nf4_pack_straight(const blas::nf4_weight& weight, int64_t row, int64_t count, int64_t col,
                         int64_t cols, blas::panels to);
)

}  // namespace ruda

#endif
