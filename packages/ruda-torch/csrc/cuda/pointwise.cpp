#include "cuda/pointwise.h"

#include "cuda/operators.h"
#include "runtime.h"

namespace ruda_torch {

void device_copy(const at::Tensor& target, const at::Tensor& source) {
  if (target.numel() == 0) return;
  if (target.scalar_type() != source.scalar_type() || target.strides() != source.strides() ||
      !target.is_non_overlapping_and_dense()) {
    refuse_on_cuda("copy_", source);
  }
  ruda_error error{};
  check(api()->copy_on_device(target.mutable_data_ptr(), source.const_data_ptr(), target.nbytes(),
                              api()->current_stream(), &error),
        error);
}

}  // namespace ruda_torch
