// Operators on lists of tensors on the cuda target: one call an element, as ATen does it for devices
// without kernels of their own.

#include "cuda/operators.h"

#include <ATen/ops/_foreach_abs_native.h>
#include <ATen/ops/_foreach_add_native.h>
#include <ATen/ops/_foreach_addcdiv_native.h>
#include <ATen/ops/_foreach_addcmul_native.h>
#include <ATen/ops/_foreach_ceil_native.h>
#include <ATen/ops/_foreach_clamp_max_native.h>
#include <ATen/ops/_foreach_clamp_min_native.h>
#include <ATen/ops/_foreach_cos_native.h>
#include <ATen/ops/_foreach_div_native.h>
#include <ATen/ops/_foreach_erf_native.h>
#include <ATen/ops/_foreach_exp_native.h>
#include <ATen/ops/_foreach_expm1_native.h>
#include <ATen/ops/_foreach_floor_native.h>
#include <ATen/ops/_foreach_frac_native.h>
#include <ATen/ops/_foreach_lerp_native.h>
#include <ATen/ops/_foreach_log_native.h>
#include <ATen/ops/_foreach_log10_native.h>
#include <ATen/ops/_foreach_log1p_native.h>
#include <ATen/ops/_foreach_log2_native.h>
#include <ATen/ops/_foreach_max_native.h>
#include <ATen/ops/_foreach_mul_native.h>
#include <ATen/ops/_foreach_neg_native.h>
#include <ATen/ops/_foreach_norm_native.h>
#include <ATen/ops/_foreach_pow_native.h>
#include <ATen/ops/_foreach_powsum_native.h>
#include <ATen/ops/_foreach_reciprocal_native.h>
#include <ATen/ops/_foreach_round_native.h>
#include <ATen/ops/_foreach_rsqrt_native.h>
#include <ATen/ops/_foreach_sigmoid_native.h>
#include <ATen/ops/_foreach_sign_native.h>
#include <ATen/ops/_foreach_sin_native.h>
#include <ATen/ops/_foreach_sqrt_native.h>
#include <ATen/ops/_foreach_sub_native.h>
#include <ATen/ops/_foreach_tan_native.h>
#include <ATen/ops/_foreach_tanh_native.h>
#include <ATen/ops/_foreach_trunc_native.h>
#include <ATen/ops/_foreach_zero_native.h>

namespace ruda_torch::cuda {

namespace {

namespace native = at::native;

// Name and in-place form of an operator of one list.
#define RUDA_EACH(name)                                                                  \
  library.impl("aten::_foreach_" #name, TORCH_FN(native::foreach_tensor_##name##_slow)); \
  library.impl("aten::_foreach_" #name "_", TORCH_FN(native::foreach_tensor_##name##_slow_))

// One overload of an operator with a second operand; `kernel` is ATen's name for it.
#define RUDA_EACH_WITH(name, overload, kernel)                                                \
  library.impl("aten::_foreach_" #name "." #overload, TORCH_FN(native::foreach_tensor_##kernel)); \
  library.impl("aten::_foreach_" #name "_." #overload, TORCH_FN(native::foreach_tensor_##kernel##_))

#define RUDA_EACH_PAIR(name, kernel)                                      \
  RUDA_EACH_WITH(name, Scalar, kernel##_scalar_kernel_slow);              \
  RUDA_EACH_WITH(name, List, kernel##_list_kernel_slow);                  \
  RUDA_EACH_WITH(name, ScalarList, kernel##_scalarlist_kernel_slow)

#define RUDA_EACH_PRODUCT(name)                            \
  RUDA_EACH_WITH(name, Scalar, name##_scalar_slow);        \
  RUDA_EACH_WITH(name, ScalarList, name##_scalarlist_slow); \
  RUDA_EACH_WITH(name, Tensor, name##_tensor_slow)

RUDA_CUDA_OPERATORS(library) {
  RUDA_EACH(abs);
  RUDA_EACH(ceil);
  RUDA_EACH(cos);
  RUDA_EACH(erf);
  RUDA_EACH(exp);
  RUDA_EACH(expm1);
  RUDA_EACH(floor);
  RUDA_EACH(frac);
  RUDA_EACH(log);
  RUDA_EACH(log10);
  RUDA_EACH(log1p);
  RUDA_EACH(log2);
  RUDA_EACH(neg);
  RUDA_EACH(reciprocal);
  RUDA_EACH(round);
  RUDA_EACH(rsqrt);
  RUDA_EACH(sigmoid);
  RUDA_EACH(sign);
  RUDA_EACH(sin);
  RUDA_EACH(sqrt);
  RUDA_EACH(tan);
  RUDA_EACH(tanh);
  RUDA_EACH(trunc);
  RUDA_EACH_PAIR(add, add);
  RUDA_EACH_WITH(add, Tensor, add_tensor_kernel_slow);
  RUDA_EACH_PAIR(sub, sub);
  RUDA_EACH_PAIR(mul, mul);
  RUDA_EACH_WITH(mul, Tensor, mul_tensor_kernel_slow);
  RUDA_EACH_PAIR(div, div);
  RUDA_EACH_WITH(div, Tensor, div_tensor_kernel_slow);
  RUDA_EACH_PAIR(clamp_max, clamp_max);
  RUDA_EACH_PAIR(clamp_min, clamp_min);
  RUDA_EACH_PAIR(maximum, clamp_min);
  RUDA_EACH_PAIR(minimum, clamp_max);
  RUDA_EACH_PAIR(pow, pow);
  RUDA_EACH_PRODUCT(addcmul);
  RUDA_EACH_PRODUCT(addcdiv);
  RUDA_EACH_WITH(lerp, List, ternary_lerp_slow);
  RUDA_EACH_WITH(lerp, Scalar, lerp_list_kernel_slow);
  RUDA_EACH_WITH(lerp, ScalarList, lerp_scalarlist_kernel_slow);
  library.impl("aten::_foreach_pow.ScalarAndTensor",
               TORCH_FN(native::foreach_scalar_pow_list_kernel_slow));
  library.impl("aten::_foreach_norm.Scalar", TORCH_FN(native::foreach_tensor_norm_slow));
  library.impl("aten::_foreach_zero_", TORCH_FN(native::foreach_tensor_zero_slow_));
  library.impl("aten::_foreach_powsum.Scalar", TORCH_FN(native::foreach_tensor_powsum_slow));
  library.impl("aten::_foreach_max", TORCH_FN(native::foreach_tensor_max_slow));
}

}  // namespace

}  // namespace ruda_torch::cuda
