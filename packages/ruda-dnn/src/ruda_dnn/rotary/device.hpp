/* The entries of this family on the cuda target, behind their checks. */
#ifndef RUDA_DNN_ROTARY_DEVICE_HPP
#define RUDA_DNN_ROTARY_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

int32_t rotary_cuda(const rotary_args& args, const char* operation, bool transposed,
                    ruda_error* error);

}  // namespace ruda

#endif
