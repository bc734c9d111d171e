/* What the optimiser entries ask of the host arithmetic: flat ranges of one tensor. */
#ifndef RUDA_DNN_OPTIM_HOST_HPP
#define RUDA_DNN_OPTIM_HOST_HPP

#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

struct adamw_tensor {
  void* parameter;
  const void* gradient;
  float* master;  // null: the parameter is float32 and its own master
  float* first;
  float* second;
  int32_t parameter_dtype;
  int32_t gradient_dtype;
};

struct adamw_numbers {
  float decay;            // 1 - learning_rate * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;        // learning_rate / (1 - beta1^step)
  float correction;       // sqrt(1 - beta2^step)
  float epsilon;
  float gradient_scale;
};

RUDA_HOST_VARIANTS(
    void adamw_update(const adamw_tensor& tensor, const adamw_numbers& numbers, int64_t begin,
                      int64_t end);
    /* Multiplies in place (unless scale is 1) and says whether every stored value is finite. */
    bool scale_in_place(void* values, int32_t dtype, float scale, int64_t begin, int64_t end);
    /* Sum of (value * scale)^2 in float64, in order; not finite when a scaled value is not. */
    double scaled_square_sum(const void* values, int32_t dtype, float scale, int64_t begin,
                             int64_t end);)

}  // namespace ruda

#endif
