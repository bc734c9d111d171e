#include "host_call.h"

#include "../allocator.h"
#include "../cuda/operators.h"
#include "../counters.h"
#include "../runtime.h"
#include "../state.h"
#include "../streams.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace ruda_torch {

namespace {

const c10::Device kDevice(kRuda, 0);

// Functionality that an alias keeps from its original; autograd and Python stay behind.
constexpr c10::DispatchKeySet kKept({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                     c10::DispatchKey::ZeroTensor});

constexpr size_t kLinearSearch = 16;

// Only storages of our pool may become storages of ruda: any other may belong to a tensor of the
// user's.
bool is_ours(const c10::StorageImpl* storage) {
  return storage->data_ptr().get_deleter() == &pool_release;
}

void move_to_ruda(c10::StorageImpl* storage) {
  c10::DataPtr memory = storage->set_data_ptr(c10::DataPtr());
  memory.unsafe_set_device(kDevice);
  storage->set_data_ptr_noswap(std::move(memory));
  storage->set_allocator(ruda_allocator());
}

// Storage of a result that did not come from our pool: an empty one, or one of a CPU argument.
c10::Storage copy_to_ruda(const c10::Storage& storage) {
  c10::Storage copy = make_storage(storage.nbytes());
  if (storage.nbytes() != 0) std::memcpy(copy.mutable_data(), storage.data(), storage.nbytes());
  return copy;
}

}  // namespace

void refuse_device(const std::string& operation, const std::string& argument,
                   const at::Tensor& tensor) {
  TORCH_CHECK(false, "[", operation, "] Expected all tensors to be on the same device: argument ",
              argument, " is on ", tensor.device(), " (shape ", tensor.sizes(),
              ") and others are on ruda:0; move it with .to(\"ruda:0\")");
}

void require_ruda(const char* operation,
                  std::initializer_list<std::pair<const char*, const at::Tensor&>> arguments) {
  for (const auto& [name, tensor] : arguments) {
    if (tensor.defined() && !tensor.is_privateuseone()) refuse_device(operation, name, tensor);
  }
}

HostCall::HostCall(const char* operation, const at::Tensor& argument)
    : below_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {
  ensure_usable();
  if (on_cuda()) refuse_on_cuda(operation, argument);
  refuse_capture();
  wait_for_current_stream();
  count(counters().library_calls);
}

HostCall::Found HostCall::find(const c10::TensorImpl* tensor) {
  Found found;
  const c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  if (entries_.size() <= kLinearSearch) {
    for (const Entry& entry : entries_) {
      if (entry.tensor == tensor) return {&entry, &entry};
      if (entry.owner.unsafeGetStorageImpl() == storage) found.storage = &entry;
    }
    return found;
  }
  for (size_t i = indexed_; i < entries_.size(); ++i) {
    index_.emplace(entries_[i].tensor, i);
    index_.emplace(entries_[i].owner.unsafeGetStorageImpl(), i);
  }
  indexed_ = entries_.size();
  if (const auto at = index_.find(tensor); at != index_.end()) found.tensor = &entries_[at->second];
  if (const auto at = index_.find(storage); at != index_.end()) {
    found.storage = &entries_[at->second];
  }
  return found;
}

const c10::Storage* HostCall::original_of(const c10::StorageImpl* alias) const {
  for (const Entry& entry : entries_) {
    if (entry.storage.get() == alias) return &entry.owner;
  }
  return nullptr;
}

at::Tensor HostCall::alias(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl->is_privateuseone()) return tensor;
  const Found found = find(impl);
  if (found.tensor != nullptr) return found.tensor->alias;
  const c10::Storage& owner = impl->unsafe_storage();
  c10::intrusive_ptr<c10::StorageImpl> storage;
  if (found.storage != nullptr) {
    storage = found.storage->storage;
  } else {
    // mutable_data(): a lazy clone gets memory of its own first.
    storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(owner.nbytes()),
        c10::DataPtr(owner.unsafeGetStorageImpl()->mutable_data(), c10::Device(c10::kCPU)),
        c10::GetCPUAllocator(), /*resizable=*/owner.unsafeGetStorageImpl()->resizable());
  }
  const c10::DispatchKeySet keys =
      (impl->key_set() & kKept) | c10::DispatchKeySet(c10::DispatchKey::CPU);
  at::Tensor result =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, impl->dtype());
  c10::TensorImpl* made = result.unsafeGetTensorImpl();
  made->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  if (impl->is_wrapped_number()) made->set_wrapped_number(true);
  entries_.push_back({impl, result, owner, std::move(storage)});
  return result;
}

std::optional<at::Tensor> HostCall::alias(const std::optional<at::Tensor>& tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return alias(*tensor);
}

at::Tensor HostCall::alias_written(const at::Tensor& tensor) {
  at::Tensor result = alias(tensor);
  if (tensor.defined()) written_.push_back({tensor.unsafeGetTensorImpl(), result});
  return result;
}

void HostCall::give_back() {
  for (Written& entry : written_) {
    c10::TensorImpl* from = entry.alias.unsafeGetTensorImpl();
    c10::TensorImpl* to = entry.original;
    c10::StorageImpl* storage = from->unsafe_storage().unsafeGetStorageImpl();
    const c10::Storage* original = original_of(storage);
    if (original == nullptr) {
      // The kernel gave the tensor another storage (`set_`).
      if (storage->device_type() == c10::kCPU && is_ours(storage)) move_to_ruda(storage);
      to->set_storage_keep_dtype(storage->device_type() == kRuda
                                     ? from->unsafe_storage()
                                     : copy_to_ruda(from->unsafe_storage()));
    } else if (storage->data() != original->data() || storage->nbytes() != original->nbytes()) {
      // Resized. Other views of the storage must see the new memory, as on the CPU: the storage
      // stays and its memory is replaced; the alias borrows it from now on.
      c10::StorageImpl* target = original->unsafeGetStorageImpl();
      void* memory = const_cast<void*>(storage->data());
      if (memory != target->data()) {
        c10::DataPtr moved =
            storage->set_data_ptr(c10::DataPtr(memory, c10::Device(c10::kCPU)));
        moved.unsafe_set_device(kDevice);
        target->set_data_ptr_noswap(std::move(moved));
      }
      target->set_nbytes(storage->nbytes());
    }
    if (from->sizes() != to->sizes() || from->strides() != to->strides() ||
        from->storage_offset() != to->storage_offset()) {
      to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
    }
    if (from->is_conj() != to->is_conj()) to->_set_conj(from->is_conj());
    if (from->is_neg() != to->is_neg()) to->_set_neg(from->is_neg());
  }
  written_.clear();
}

at::Tensor HostCall::adopt(at::Tensor result) {
  if (!result.defined() || !result.is_cpu()) return result;
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided,
                              "[ruda] results of layout ", result.layout(),
                              " do not exist on the host target; only strided tensors do");
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (const c10::Storage* original = original_of(storage)) {
    impl->set_storage_keep_dtype(*original);
  } else if (storage->device_type() == kRuda) {  // an earlier result's
    impl->set_storage_keep_dtype(impl->unsafe_storage());
  } else if (is_ours(storage)) {
    move_to_ruda(storage);
    impl->set_storage_keep_dtype(impl->unsafe_storage());
  } else {
    // A detached copy: `result` may be an argument of the caller's.
    at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(
        copy_to_ruda(impl->unsafe_storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        impl->dtype());
    copy.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sizes(), impl->strides(),
                                                      impl->storage_offset());
    return copy;
  }
  impl->_change_backend_component_keys(kDevice);
  return result;
}

}  // namespace ruda_torch
