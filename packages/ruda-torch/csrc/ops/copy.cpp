// Copies: between CPU and ruda and within ruda, with conversion, broadcasting, strides and lazy
// conjugate and negative bits. On the host target both sides are host memory: ATen's CPU copy does the
// work on aliases, and a copy is complete when its call returns, whatever `non_blocking` says. The cuda
// target's copies are in cuda/copy.cpp.

#include "alias.h"
#include "allocator.h"
#include "counters.h"
#include "cuda/copy.h"
#include "cuda/target.h"
#include "cpu_allocator_proxy.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"
#include "threads.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

namespace ruda_torch {

namespace {

bool on_ruda(const at::Tensor& tensor) { return tensor.device().type() == kRuda; }

at::Tensor as_cpu(const at::Tensor& tensor, const char* role) {
  TORCH_CHECK(on_ruda(tensor) || tensor.device().is_cpu(), "[copy_] ", role, ": got a tensor on ",
              tensor.device(), ", wanted one on ruda or cpu");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "[copy_] ", role, ": got layout ",
                              tensor.layout(), ", wanted torch.strided");
  return on_ruda(tensor) ? alias_as_cpu(tensor) : tensor;
}

bool is_strided_real(const at::Tensor& tensor) {
  return (on_ruda(tensor) || tensor.device().is_cpu()) && tensor.layout() == c10::kStrided &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

// Long copies that convert or have strides. Not complex numbers, of which ATen drops a part with a
// warning, and not transpositions, for which it has a kernel of its own.
bool has_parts(const at::Tensor& target, const at::Tensor& source) {
  const auto plain = [](const at::Tensor& tensor) {
    return is_strided_real(tensor) && tensor.dim() > 0 && !tensor.is_complex() &&
           !tensor.is_quantized();
  };
  return target.numel() > kFewElements && plain(target) && plain(source) &&
         (target.scalar_type() != source.scalar_type() ||
          source.stride(-1) == target.stride(-1));
}

// CPU tensors of the same number of dimensions, along the longest of them.
void copy_in_parts(const at::Tensor& target, at::Tensor source) {
  if (source.sizes() != target.sizes()) source = source.expand(target.sizes());
  const auto sizes = target.sizes();
  const int64_t dim = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
  const int64_t grain = std::max<int64_t>(1, sizes[dim] / (target.numel() / kFewElements + 1));
  parallel_parts(sizes[dim], grain, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const OneThread alone;
    at::Tensor part = target.narrow(dim, begin, end - begin);
    at::native::copy_(part, source.narrow(dim, begin, end - begin), false);
  });
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (on_cuda()) {
    cuda_copy(target, source, non_blocking);
    return target;
  }
  refuse_capture();
  const InsideRuda inside;
  // Here, because the aliases have storages of their own: ATen's check does not see that they share.
  at::assert_no_partial_overlap(target, source);
  count_copy(target, source);
  OneThread threads;
  if (target.numel() > kFewElements) threads.end();
  at::Tensor written = as_cpu(target, "target");
  const at::Tensor read = as_cpu(source, "source");
  if (has_parts(target, source)) {
    copy_in_parts(written, read);
  } else {
    at::native::copy_(written, read, non_blocking);
  }
  return target;
}

// ---- bytes that lie in the same order on both sides ---------------------------------------------

bool same_bytes(const at::Tensor& target, const at::Tensor& source) {
  return source.defined() && target.scalar_type() == source.scalar_type() &&
         target.sizes() == source.sizes() && target.is_contiguous() && source.is_contiguous() &&
         is_strided_real(target) && is_strided_real(source);
}

void copy_bytes(const at::Tensor& target, const at::Tensor& source) {
  ensure_usable();
  refuse_capture();
  wait_for_current_stream();
  count_copy(target, source);
  if (target.numel() == 0) return;
  const void* from = source.const_data_ptr();
  void* to = target.mutable_data_ptr();
  if (to == from) return;
  constexpr int64_t part = 1 << 18;
  parallel_parts(static_cast<int64_t>(target.nbytes()), part, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (on_cuda()) {
    cuda_copy(self, source, non_blocking);
    return self;
  }
  if (!same_bytes(self, source)) return at::native::copy_(self, source, non_blocking);
  at::assert_no_partial_overlap(self, source);
  copy_bytes(self, source);
  return self;
}

// A dense tensor's clone has its strides, and so its bytes in their order.
at::Tensor clone(const at::Tensor& self, std::optional<c10::MemoryFormat> format) {
  if (format.value_or(c10::MemoryFormat::Preserve) != c10::MemoryFormat::Preserve ||
      !is_strided_real(self) || !self.is_non_overlapping_and_dense()) {
    return at::native::clone(self, format);
  }
  at::Tensor result = at::detail::empty_strided_generic(
      self.sizes(), self.strides(), ruda_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), self.scalar_type());
  if (on_cuda()) {
    cuda_copy(result, self, /*non_blocking=*/true);
  } else {
    copy_bytes(result, self);
  }
  return result;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (on_cuda()) return cuda_item(self);
  refuse_capture();
  Counters& all = counters();
  count(all.transfers_to_host);
  count(all.bytes_to_host, static_cast<int64_t>(self.element_size()));
  return at::native::_local_scalar_dense_cpu(alias_as_cpu(self));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  ruda_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// PyTorch's own list of dense backends leaves PrivateUse1 out, so that `parameter.data = other`
// would be refused and Module.to() would make new parameters: tied weights would come apart and an
// optimiser made before would train the old ones. Meta is not in the list, here neither: moving a
// model to `meta` makes new parameters on every device.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if (!on_ruda(self) && !on_ruda(from)) {
    return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
  }
  const auto dense = [](const at::Tensor& tensor) {
    using c10::BackendComponent;
    constexpr c10::DispatchKeySet backends(
        {BackendComponent::PrivateUse1Bit, BackendComponent::CPUBit, BackendComponent::CUDABit,
         BackendComponent::MPSBit, BackendComponent::HIPBit, BackendComponent::XPUBit,
         BackendComponent::HPUBit, BackendComponent::MTIABit});
    const c10::DispatchKeySet keys = tensor.key_set();
    return keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) && keys.has_any(backends);
  };
  return dense(self) && dense(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", &copy_);
  m.impl("clone", &clone);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// The lazy bits are honoured by the copy itself. PyTorch's fallback for them resolves a bit by a
// clone, which is a copy, which would come back here without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace

}  // namespace ruda_torch
