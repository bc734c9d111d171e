/* The entries of this family on the cuda target, behind their checks. */
#ifndef RUDA_DNN_OPTIM_DEVICE_HPP
#define RUDA_DNN_OPTIM_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

int32_t adamw_step_cuda(const adamw_step_args& args, ruda_error* error);
int32_t gradient_unscale_cuda(const gradient_unscale_args& args, ruda_error* error);
int32_t gradient_norm_cuda(const gradient_norm_args& args, ruda_error* error);

}  // namespace ruda

#endif
