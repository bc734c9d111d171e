// One call of ATen's CPU kernels on ruda memory. On the host target the CPU is the device: a CPU
// tensor over the same memory goes in, and what comes out is turned into a ruda tensor without a
// copy. Nothing made here outlives the call that made it.
#pragma once

#include "../cpu_allocator_proxy.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace ruda_torch {

// RuntimeError: `tensor` is not where the other arguments of `operation` are.
[[noreturn]] void refuse_device(const std::string& operation, const std::string& argument,
                                const at::Tensor& tensor);

// Refuses the first argument that is not on ruda; undefined ones pass.
void require_ruda(const char* operation,
                  std::initializer_list<std::pair<const char*, const at::Tensor&>> arguments);

// Lives on the stack around one call. While it lives, results come from our pool, and operators
// that the CPU kernel calls in turn skip autograd and autocast: both have done their work above us.
//
// A call runs when the current stream is idle: the constructor waits for it.
class HostCall {
 public:
  // The cuda target has no such calls: there the constructor refuses the operator, by its name.
  explicit HostCall(const char* operation, const at::Tensor& argument = at::Tensor());
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  // A CPU tensor over the memory of `tensor`. The same tensor gets the same alias, and tensors that
  // share a storage get aliases that share one: ATen's overlap checks and its treatment of an `out`
  // that is also an input hold. Undefined and CPU tensors pass through.
  at::Tensor alias(const at::Tensor& tensor);
  std::optional<at::Tensor> alias(const std::optional<at::Tensor>& tensor);

  // The same for an argument that the kernel writes: give_back() hands its new sizes, and new
  // memory if the kernel resized it, to `tensor`, which must stay alive until then.
  at::Tensor alias_written(const at::Tensor& tensor);
  void give_back();

  // A result as a ruda tensor: in place when the kernel made it, over the original storage when it
  // shares an alias's.
  at::Tensor adopt(at::Tensor result);

 private:
  struct Entry {
    const c10::TensorImpl* tensor;
    at::Tensor alias;
    c10::Storage owner;
    c10::intrusive_ptr<c10::StorageImpl> storage;  // the alias's; the kernel may replace it there
  };
  struct Written {
    c10::TensorImpl* original;
    at::Tensor alias;
  };

  // The entries of a tensor and of its storage, or null.
  struct Found {
    const Entry* tensor = nullptr;
    const Entry* storage = nullptr;
  };
  Found find(const c10::TensorImpl* tensor);
  const c10::Storage* original_of(const c10::StorageImpl* alias) const;

  InsideRuda inside_;
  c10::impl::ExcludeDispatchKeyGuard below_;
  c10::SmallVector<Entry, 4> entries_;
  c10::SmallVector<Written, 1> written_;
  std::unordered_map<const void*, size_t> index_;  // tensors and storages, for long lists
  size_t indexed_ = 0;                             // entries in it
};

}  // namespace ruda_torch
