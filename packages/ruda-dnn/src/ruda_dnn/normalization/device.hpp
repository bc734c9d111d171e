/* The entries of this family on the cuda target, behind their checks. */
#ifndef RUDA_DNN_NORMALIZATION_DEVICE_HPP
#define RUDA_DNN_NORMALIZATION_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

int32_t rms_norm_forward_cuda(const rms_norm_forward_args& args, ruda_error* error);
int32_t rms_norm_backward_cuda(const rms_norm_backward_args& args, ruda_error* error);
int32_t layer_norm_forward_cuda(const layer_norm_forward_args& args, ruda_error* error);
int32_t layer_norm_backward_cuda(const layer_norm_backward_args& args, ruda_error* error);

}  // namespace ruda

#endif
