#include "cuda/copy.h"

#include "counters.h"
#include "cuda/operators.h"
#include "cuda/pointwise.h"
#include "pinned.h"
#include "runtime.h"
#include "streams.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

namespace ruda_torch {

namespace {

using at::Tensor;

bool on_ruda(const Tensor& tensor) { return tensor.is_privateuseone(); }

void check_side(const Tensor& tensor, const char* role) {
  TORCH_CHECK(on_ruda(tensor) || tensor.is_cpu(), "[copy_] ", role, ": got a tensor on ",
              tensor.device(), ", wanted one on ruda or cpu");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "[copy_] ", role, ": got layout ",
                              tensor.layout(), ", wanted torch.strided");
}

// The bytes of one side are those of the other.
bool same_order(const Tensor& target, const Tensor& source) {
  return target.sizes() == source.sizes() && target.is_conj() == source.is_conj() &&
         target.is_neg() == source.is_neg() && same_memory_order(target, source);
}

void copy_bytes(const Tensor& target, const Tensor& source, bool non_blocking) {
  void* to = target.mutable_data_ptr();
  const void* from = source.const_data_ptr();
  const size_t nbytes = target.nbytes();
  const int32_t stream = api()->current_stream();
  ruda_error error{};
  if (on_ruda(target)) {
    check(api()->copy_to_device(to, from, nbytes, stream, &error), error);
    if (!non_blocking && is_pinned_pointer(from)) check(api()->synchronize(stream, &error), error);
  } else {
    check(api()->copy_to_host(to, from, nbytes, stream, &error), error);
    if (!non_blocking && is_pinned_pointer(to)) check(api()->synchronize(stream, &error), error);
  }
}

// One side on the GPU, the other on the CPU: what the kernels and the CPU have to do is done on a tensor
// that has the other side's bytes.
void transfer(const Tensor& target, const Tensor& source, bool non_blocking) {
  count_copy(target, source);
  if (same_order(target, source)) {
    copy_bytes(target, source, non_blocking);
  } else if (on_ruda(target)) {
    const Tensor there = source.contiguous();
    const Tensor here = at::empty(there.sizes(), target.options().dtype(source.dtype()));
    copy_bytes(here, there, /*non_blocking=*/false);
    device_copy(target, here);
  } else {
    Tensor here = source;
    if (!source.is_non_overlapping_and_dense()) {
      here = at::empty(source.sizes(), source.options());
      device_copy(here, source);
    }
    const Tensor there = at::empty_strided(here.sizes(), here.strides(),
                                           target.options().dtype(source.dtype()));
    copy_bytes(there, here, /*non_blocking=*/false);
    target.copy_(there);
  }
}

}  // namespace

void count_copy(const Tensor& target, const Tensor& source) {
  Counters& all = counters();
  const auto nbytes = static_cast<int64_t>(target.nbytes());
  if (on_ruda(source) && on_ruda(target)) {
    count(all.library_calls);
  } else if (on_ruda(target)) {
    count(all.transfers_to_device);
    count(all.bytes_to_device, nbytes);
  } else {
    count(all.transfers_to_host);
    count(all.bytes_to_host, nbytes);
  }
}

void cuda_copy(const Tensor& target, const Tensor& source, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  refuse_capture();
  check_side(target, "target");
  check_side(source, "source");
  if (target.is_same(source)) return;
  const Tensor expanded =
      source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  if (target.numel() == 0) return;
  if (source._is_zerotensor()) {
    target.zero_();
    return;
  }
  at::assert_no_internal_overlap(target);
  at::assert_no_partial_overlap(target, expanded);
  if (source.is_neg() || target.is_neg()) {
    const bool differ = source.is_neg() != target.is_neg();
    cuda_copy(target.is_neg() ? at::_neg_view(target) : target,
              source.is_neg() ? at::_neg_view(source) : source, non_blocking);
    if (differ) target.neg_();
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(source.is_conj() == target.is_conj(),
                              "[copy_] source: got a conjugate view of a complex tensor, which the "
                              "cuda target cannot resolve; call resolve_conj() on the CPU");
  if (on_ruda(target) && on_ruda(source)) {
    count_copy(target, source);
    device_copy(target, expanded);
  } else if (on_ruda(target)) {
    if (source.numel() == target.numel()) {
      transfer(target, expanded, non_blocking);
    } else {  // what is broadcast goes over the bus once
      const Tensor here = at::empty(source.sizes(), target.options().dtype(source.dtype()));
      transfer(here, source, non_blocking);
      device_copy(target, here.expand(target.sizes()));
    }
  } else {
    transfer(target, source.numel() == target.numel() ? expanded : source, non_blocking);
  }
}

at::Scalar cuda_item(const Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.numel() == 1, "[item] got a tensor of ", tensor.numel(),
              " elements, wanted 1");
  const Tensor there = at::empty({}, tensor.options().device(c10::kCPU));
  cuda_copy(there, tensor.reshape({}), /*non_blocking=*/false);
  return at::native::_local_scalar_dense_cpu(there);
}

}  // namespace ruda_torch
