/* The entries of this family on the cuda target, behind their checks. */
#ifndef RUDA_DNN_ACTIVATION_DEVICE_HPP
#define RUDA_DNN_ACTIVATION_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

int32_t silu_mul_forward_cuda(const silu_mul_forward_args& args, ruda_error* error);
int32_t silu_mul_backward_cuda(const silu_mul_backward_args& args, ruda_error* error);

}  // namespace ruda

#endif
