/* The NF4 entries on the cuda target, behind their checks. */
#ifndef RUDA_BLAS_NF4_DEVICE_HPP
#define RUDA_BLAS_NF4_DEVICE_HPP

#include <ruda/blas.h>

namespace ruda {

/* Waits for the work before it: NaN and infinity are refused. */
int32_t nf4_quantize_cuda(const nf4_quantize_args& args, const char* operation, ruda_error* error);
int32_t nf4_dequantize_cuda(const nf4_dequantize_args& args, const char* operation,
                            ruda_error* error);
int32_t nf4_product_cuda(const nf4_matmul_args& args, bool forward, const char* operation,
                         ruda_error* error);

}  // namespace ruda

#endif
