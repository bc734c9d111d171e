// What the training operators share: views with device checks, and launches of registered kernels.
#pragma once

#include "../runtime.h"

#include <ATen/core/Tensor.h>
#include <ruda/abi.h>

#include <atomic>
#include <deque>
#include <optional>

namespace ruda_torch {

// A kernel of the packages below, found once by name. `layout` is this build's hash of the argument
// struct: a package whose header differs is refused before the first call.
class Kernel {
 public:
  Kernel(const char* name, uint64_t layout) : name_(name), layout_(layout) {}

  // Not inlined: every caller would carry the error's kilobyte of stack handling.
  void launch(const void* arguments) const;

 private:
  const ruda_kernel* find() const;

  const char* name_;
  uint64_t layout_;
  // A registered kernel stays for the life of the process; threads may both look it up once.
  mutable std::atomic<const ruda_kernel*> found_{nullptr};
};

// Views that stay valid while this object and the tensors live. The first tensor sets the device.
class Views {
 public:
  explicit Views(const char* operation) : operation_(operation) {}

  const ruda_view* operator()(const at::Tensor& tensor, const char* argument);

  // Null for an absent tensor.
  const ruda_view* optional(const std::optional<at::Tensor>& tensor, const char* argument) {
    return tensor.has_value() && tensor->defined() ? (*this)(*tensor, argument) : nullptr;
  }
  const ruda_view* optional(const at::Tensor& tensor, const char* argument) {
    return tensor.defined() ? (*this)(tensor, argument) : nullptr;
  }

  // The same memory with another shape, for a contiguous tensor.
  const ruda_view* matrix(const at::Tensor& tensor, int64_t rows, int64_t columns,
                          const char* argument);
  // One dimension over a dense tensor of any layout; `index`: its place where `argument` is a list.
  const ruda_view* flat(const at::Tensor& tensor, const char* argument, int64_t index = -1);

 private:
  struct Shaped {
    int64_t sizes[2];
    int64_t strides[2];
  };

  const char* operation_;
  std::optional<c10::Device> device_;
  std::deque<ruda_view> views_;
  std::deque<Shaped> shapes_;
};

// The contiguous form of an optional tensor.
inline std::optional<at::Tensor> contiguous(const std::optional<at::Tensor>& tensor) {
  if (!tensor.has_value() || !tensor->defined()) return std::nullopt;
  return tensor->contiguous();
}

}  // namespace ruda_torch
