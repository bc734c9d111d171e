#include "alias.h"

#include "allocator.h"
#include "cuda/operators.h"
#include "runtime.h"
#include "state.h"
#include "streams.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace ruda_torch {

namespace {

const c10::Device kDevice(kRuda, 0);

// Deleter of borrowed memory: the context is an owned reference to the storage it belongs to. The
// function's address is also how a borrowing storage is recognised.
void drop_owner(void* context) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(context));
}

c10::DataPtr borrow(const c10::Storage& owner, c10::Device device) {
  void* memory = owner.mutable_data();  // a copy-on-write storage gets memory of its own here
  auto reference = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner.unsafeGetStorageImpl());
  return {memory, reference.release(), &drop_owner, device};
}

// The storage that `storage` borrows its memory from, or null.
c10::StorageImpl* owner_of(const c10::Storage& storage) {
  const c10::DataPtr& pointer = storage.data_ptr();
  if (pointer.get_deleter() != &drop_owner) return nullptr;
  return static_cast<c10::StorageImpl*>(pointer.get_context());
}

void copy_geometry(const at::Tensor& from, c10::TensorImpl* to) {
  to->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  copy_geometry(like, result.unsafeGetTensorImpl());
  if (like.is_conj()) result._set_conj(true);
  if (like.is_neg()) result._set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return result;
}

}  // namespace

at::Tensor alias_as_cpu(const at::Tensor& ruda) {
  TORCH_INTERNAL_ASSERT(ruda.device().type() == kRuda && ruda.layout() == c10::kStrided);
  ensure_usable();
  if (on_cuda()) refuse_on_cuda("alias_as_cpu", ruda);
  wait_for_current_stream();  // what follows reads or writes the memory on this thread
  const c10::Storage& owner = ruda.storage();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(owner.nbytes()),
      borrow(owner, c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true);
  return tensor_over(c10::Storage(std::move(storage)), c10::DispatchKey::CPU, ruda);
}

c10::Storage adopt_storage(const c10::Storage& cpu) {
  wait_for_current_stream();  // a fresh block may still be in use by the work before
  if (c10::StorageImpl* owner = owner_of(cpu)) {
    if (owner->device_type() == kRuda) {
      return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner));
    }
  }
  const size_t nbytes = cpu.nbytes();
  const void* memory = cpu.data();
  c10::StorageImpl* impl = cpu.unsafeGetStorageImpl();
  if (cpu.data_ptr().get_deleter() != &pool_release) {
    c10::Storage copy = make_storage(nbytes);
    if (nbytes != 0) std::memcpy(copy.mutable_data(), memory, nbytes);
    return copy;
  }
  c10::DataPtr owned = impl->set_data_ptr(
      c10::DataPtr(const_cast<void*>(memory), c10::Device(c10::kCPU)));
  owned.unsafe_set_device(kDevice);
  c10::Storage result(c10::Storage::use_byte_size_t(), nbytes, std::move(owned), ruda_allocator(),
                      /*resizable=*/true);
  impl->set_data_ptr_noswap(borrow(result, c10::Device(c10::kCPU)));
  return result;
}

at::Tensor adopt_as_ruda(const at::Tensor& cpu) {
  TORCH_INTERNAL_ASSERT(cpu.device().is_cpu() && cpu.layout() == c10::kStrided);
  return tensor_over(adopt_storage(cpu.storage()), c10::DispatchKey::PrivateUse1, cpu);
}

void sync_alias(const at::Tensor& ruda, const at::Tensor& alias) {
  wait_for_current_stream();
  c10::TensorImpl* impl = ruda.unsafeGetTensorImpl();
  c10::StorageImpl* target = ruda.storage().unsafeGetStorageImpl();
  c10::StorageImpl* source = alias.storage().unsafeGetStorageImpl();
  c10::StorageImpl* owner = owner_of(alias.storage());
  if (owner != nullptr && owner != target && owner->device_type() == kRuda) {
    // The kernel pointed the alias at another tensor's storage.
    impl->set_storage_keep_dtype(
        c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner)));
  } else if (owner != target) {
    // The kernel resized the alias. Other views of the storage must see the new memory, as they do
    // when a CPU tensor is resized in place: the storage stays and its memory is replaced.
    const size_t nbytes = source->nbytes();
    c10::DataPtr memory;
    if (source->data_ptr().get_deleter() == &pool_release) {
      memory = source->set_data_ptr(c10::DataPtr());
      memory.unsafe_set_device(kDevice);
    } else {
      memory = ruda_allocator()->allocate(nbytes);
      if (nbytes != 0) std::memcpy(memory.mutable_get(), source->data(), nbytes);
    }
    target->set_data_ptr_noswap(std::move(memory));
    target->set_nbytes(nbytes);
    source->set_data_ptr_noswap(borrow(ruda.storage(), c10::Device(c10::kCPU)));
  }
  if (ruda.sizes() != alias.sizes() || ruda.strides() != alias.strides() ||
      ruda.storage_offset() != alias.storage_offset()) {
    copy_geometry(alias, impl);
  }
}

}  // namespace ruda_torch
