/* What stands in for OpenBLAS in a build without it (RUDA_BLAS_OPENBLAS=OFF): the same results, many
 * times slower. Each element is one sum over k in order, whatever the tile it is in. */
#include <vector>

#include "openblas.hpp"

namespace ruda::blas {
namespace {

constexpr int64_t width = 256; /* columns whose sums stay in the first cache */

}  // namespace

void sgemm(layout a_layout, layout b_layout, int64_t m, int64_t n, int64_t k, float alpha,
           const float* a, const float* b, float beta, float* c, int64_t ldc) {
  std::vector<float> panel(b_layout.transposed ? k * width : 0);
  for (int64_t n0 = 0; n0 < n; n0 += width) {
    const int64_t cols = n - n0 < width ? n - n0 : width;
    const float* rows = b + n0;
    int64_t ldb = b_layout.ld;
    if (b_layout.transposed) {
      for (int64_t j = 0; j < cols; ++j)
        for (int64_t i = 0; i < k; ++i) panel[i * width + j] = b[(n0 + j) * b_layout.ld + i];
      rows = panel.data();
      ldb = width;
    }
    for (int64_t r = 0; r < m; ++r) {
      float sum[width] = {};
      for (int64_t i = 0; i < k; ++i) {
        const float value = a[a_layout.transposed ? i * a_layout.ld + r : r * a_layout.ld + i];
        for (int64_t j = 0; j < cols; ++j) sum[j] += value * rows[i * ldb + j];
      }
      float* out = c + r * ldc + n0;
      for (int64_t j = 0; j < cols; ++j)
        out[j] = alpha * sum[j] + (beta == 0.0f ? 0.0f : beta * out[j]);
    }
  }
}

std::string describe_library() { return "none: built without OpenBLAS; threads 1"; }

}  // namespace ruda::blas
