/* A tensor around the axis of its softmax. */
#ifndef RUDA_DNN_SOFTMAX_SPLIT_HPP
#define RUDA_DNN_SOFTMAX_SPLIT_HPP

#include <ruda/abi.h>

namespace ruda {

/* x as [outer, count, inner] around the axis. */
struct softmax_split {
  int64_t outer = 1, count = 1, inner = 1;
  softmax_split(const ruda_view& x, int64_t axis) : count(x.sizes[axis]) {
    for (int64_t i = 0; i < axis; ++i) outer *= x.sizes[i];
    for (int64_t i = axis + 1; i < x.ndim; ++i) inner *= x.sizes[i];
  }
};

}  // namespace ruda

#endif
