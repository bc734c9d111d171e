/* What the silu_mul entry asks of the host arithmetic. Everything is contiguous, of one dtype. */
#ifndef RUDA_DNN_ACTIVATION_HOST_HPP
#define RUDA_DNN_ACTIVATION_HOST_HPP

#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

struct silu_mul_range {
  const void* gate;
  const void* up;
  const void* grad;  // null in the forward pass
  void* out;         // forward
  void* dgate;       // backward, or null
  void* dup;         // backward, or null
  int32_t dtype;
  bool streamed;     // out past the caches
};

RUDA_HOST_VARIANTS(
    void silu_mul_forward(const silu_mul_range& args, int64_t begin, int64_t end);
    void silu_mul_backward(const silu_mul_range& args, int64_t begin, int64_t end);)

}  // namespace ruda

#endif
