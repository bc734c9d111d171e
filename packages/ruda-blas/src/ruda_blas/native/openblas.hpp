/* The vendored OpenBLAS, loaded at the first product that needs it. */
#ifndef RUDA_BLAS_OPENBLAS_HPP
#define RUDA_BLAS_OPENBLAS_HPP

#include <cstdint>
#include <string>

namespace ruda::blas {

/* How a matrix lies in memory for BLAS: row-major with leading dimension `ld`, or its transpose. */
struct layout {
  bool transposed;
  int64_t ld;
};

/* c[m, n] = alpha * op(a)[m, k] @ op(b)[k, n] + beta * c, row-major, on the calling thread only.
 * Every size and leading dimension must fit `int`; beta == 0 never reads c. Throws status_error when
 * the library cannot be loaded. */
void sgemm(layout a_layout, layout b_layout, int64_t m, int64_t n, int64_t k, float alpha,
           const float* a, const float* b, float beta, float* c, int64_t ldc);

/* Version, kernel family and threads of the loaded library, for reports and tests. */
std::string describe_library();

}  // namespace ruda::blas

#endif
