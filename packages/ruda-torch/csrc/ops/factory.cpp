// Operators that make or change storages: empty, resize_, set_.

#include "allocator.h"
#include "cuda/target.h"
#include "runtime.h"
#include "streams.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <torch/library.h>

#include <algorithm>

namespace ruda_torch {

namespace {

using OptionalType = std::optional<c10::ScalarType>;
using OptionalLayout = std::optional<c10::Layout>;
using OptionalDevice = std::optional<c10::Device>;

// The checks all factories share; gives the dtype.
c10::ScalarType checked_options(const char* name, OptionalType dtype, OptionalLayout layout,
                                OptionalDevice device, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided, "[", name,
                              "] layout: got ", *layout, ", wanted torch.strided");
  TORCH_CHECK(!device || (device->type() == kRuda && device->index() <= 0), "[", name,
              "] device: got ", *device, ", wanted ruda:0 (there is one device)");
  TORCH_CHECK_VALUE(!pin_memory.value_or(false), "[", name,
                    "] pin_memory: got True for a ruda tensor, wanted a CPU tensor");
  return dtype.value_or(at::get_default_dtype_as_scalartype());
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor filled_if_deterministic(at::Tensor tensor) {
  if (at::globalContext().deterministicAlgorithms() &&
      at::globalContext().deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty_memory_format(at::IntArrayRef size, OptionalType dtype, OptionalLayout layout,
                               OptionalDevice device, std::optional<bool> pin_memory,
                               std::optional<c10::MemoryFormat> format) {
  const auto type = checked_options("empty", dtype, layout, device, pin_memory);
  return filled_if_deterministic(
      at::detail::empty_generic(size, ruda_allocator(), kKeys, type, format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptionalType dtype,
                         OptionalLayout layout, OptionalDevice device,
                         std::optional<bool> pin_memory) {
  const auto type = checked_options("empty_strided", dtype, layout, device, pin_memory);
  return filled_if_deterministic(
      at::detail::empty_strided_generic(size, stride, ruda_allocator(), kKeys, type));
}

// A tensor of zeros that has no memory: forward-mode differentiation makes them.
at::Tensor efficient_zero_tensor(at::IntArrayRef size, OptionalType dtype, OptionalLayout layout,
                                 OptionalDevice device, std::optional<bool> pin_memory) {
  const auto type = checked_options("_efficientzerotensor", dtype, layout, device, pin_memory);
  static auto* allocator = new at::native::ZeroTensorAllocator(c10::Device(kRuda, 0));
  const auto keys = kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, allocator, keys, type, std::nullopt);
}

// Room for a tensor of these sizes behind the offset of `self`.
void grow_storage(const at::Tensor& self, at::IntArrayRef size) {
  if (std::any_of(size.begin(), size.end(), [](int64_t value) { return value < 0; })) return;
  const size_t needed = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<size_t>(self.storage_offset()));
  if (self.storage().nbytes() < needed) resize_storage(self.storage(), needed);
}

// ATen's own functions that may enlarge a storage work through its allocator and memcpy: right for
// host memory, once the work that writes it is done. On the cuda target the storage is enlarged
// before, and ATen finds it large enough.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<c10::MemoryFormat> format) {
  if (on_cuda()) {
    grow_storage(self, size);
  } else {
    wait_for_current_stream();
  }
  return at::native::resize_(self, size, format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  if (on_cuda()) {
    const auto negative = [](int64_t value) { return value < 0; };
    // What is wrong otherwise is ATen's to say.
    if (offset >= 0 && std::none_of(size.begin(), size.end(), negative) &&
        std::none_of(stride.begin(), stride.end(), negative) &&
        (stride.empty() || stride.size() == size.size())) {
      const auto start = static_cast<size_t>(offset);
      const size_t needed =
          stride.empty()
              ? at::detail::computeStorageNbytesContiguous(size, self.element_size(), start)
              : at::detail::computeStorageNbytes(size, stride, self.element_size(), start);
      if (storage.nbytes() < needed) resize_storage(storage, needed);
    }
  } else {
    wait_for_current_stream();
  }
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

at::Tensor& set_empty(at::Tensor& self) {
  return at::native::set_storage_cpu_(self, make_storage(0), 0, {0}, {});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("resize_", &resize);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage",
         static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
}

}  // namespace

}  // namespace ruda_torch
