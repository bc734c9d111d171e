/* What the softmax entries ask of the host arithmetic. Tensors are contiguous [outer, count, inner]
 * and of one dtype; the sums run over `count`. */
#ifndef RUDA_DNN_SOFTMAX_HOST_HPP
#define RUDA_DNN_SOFTMAX_HOST_HPP

#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

struct softmax_rows {
  const void* x;     // forward; null in the backward pass
  const void* grad;  // backward
  void* y;           // written by the forward pass, read by the backward pass
  void* dx;          // backward
  int64_t count;
  int64_t inner;
  int32_t dtype;
  bool logarithm;
  bool streamed;     // y or dx past the caches; for inner = 1 alone
};

/* Columns of `inner` that one index of the loops over columns covers. */
constexpr int64_t softmax_columns = 64;

RUDA_HOST_VARIANTS(
    /* inner = 1: rows begin..end. */
    void softmax_forward_rows(const softmax_rows& args, int64_t begin, int64_t end);
    void softmax_backward_rows(const softmax_rows& args, int64_t begin, int64_t end);
    /* Blocks begin..end of the outer * ceil(inner / softmax_columns). */
    void softmax_forward_columns(const softmax_rows& args, int64_t begin, int64_t end);
    void softmax_backward_columns(const softmax_rows& args, int64_t begin, int64_t end);)

}  // namespace ruda

#endif
