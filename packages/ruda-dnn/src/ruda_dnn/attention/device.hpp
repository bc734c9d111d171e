/* The entries of this family on the cuda target, behind their checks. */
#ifndef RUDA_DNN_ATTENTION_DEVICE_HPP
#define RUDA_DNN_ATTENTION_DEVICE_HPP

#include <ruda/dnn.h>

namespace ruda {

/* The largest numbers of queries and keys of a sequence. */
struct attention_lengths {
  int64_t queries, keys;
};

int32_t attention_forward_cuda(const attention_forward_args& args, const attention_lengths& longest,
                               ruda_error* error);
int32_t attention_backward_cuda(const attention_backward_args& args,
                                const attention_lengths& longest, ruda_error* error);

}  // namespace ruda

#endif
