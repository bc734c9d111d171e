/* The entries of this family on the cuda target, behind their checks. */
#ifndef RUDA_DNN_SOFTMAX_DEVICE_HPP
#define RUDA_DNN_SOFTMAX_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

int32_t softmax_forward_cuda(const softmax_forward_args& args, const char* operation,
                             ruda_error* error);
int32_t softmax_backward_cuda(const softmax_backward_args& args, const char* operation,
                              ruda_error* error);

}  // namespace ruda

#endif
