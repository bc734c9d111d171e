/* The dense product on the cuda target, behind the entry's checks. */
#ifndef RUDA_BLAS_GEMM_DEVICE_HPP
#define RUDA_BLAS_GEMM_DEVICE_HPP

#include <ruda/blas.h>

namespace ruda {

int32_t gemm_product_cuda(const gemm_args& args, const char* operation, ruda_error* error);

}  // namespace ruda

#endif
