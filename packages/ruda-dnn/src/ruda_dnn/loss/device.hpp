/* The entry of this family on the cuda target, behind its checks. */
#ifndef RUDA_DNN_LOSS_DEVICE_HPP
#define RUDA_DNN_LOSS_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

int32_t linear_cross_entropy_cuda(const linear_cross_entropy_args& args, ruda_error* error);

}  // namespace ruda

#endif
