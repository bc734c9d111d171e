// The route of the hot operators on the host target: ATen's structured kernel on the ruda tensors
// themselves, without aliases. Its shape rules, errors and arithmetic are the CPU's, since the slot
// of PrivateUse1 in ATen's kernel tables leads to the CPU's kernels; the result comes from our pool.
//
// TensorIterator converts operands for CPU tensors only. A call whose operands differ in dtype, or
// are not on ruda, therefore takes the boxed kernel, which also has the errors of wrong devices. A
// 0-dimensional CPU number is converted here.
#pragma once

#include "boxed.h"

#include "../allocator.h"
#include "../counters.h"
#include "../cpu_allocator_proxy.h"
#include "../state.h"
#include "../streams.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <type_traits>
#include <utility>

namespace ruda_torch::stub {

using at::Scalar;
using at::Tensor;

// ---- ATen's kernel tables -----------------------------------------------------------------------

template <auto& table, class Function>
struct OnCpu;

template <auto& table, class Return, class... Args>
struct OnCpu<table, Return (*)(Args...)> {
  static Return run(Args... args) { return table(c10::kCPU, std::forward<Args>(args)...); }
};

// The CPU's kernels of the tables stand in for ours.
template <auto&... tables>
void use_cpu_kernels() {
  (tables.set_privateuse1_dispatch_ptr(
       &OnCpu<tables, typename std::remove_reference_t<decltype(tables)>::FnPtr>::run),
   ...);
}

// ---- calls --------------------------------------------------------------------------------------

// Before a kernel works on ruda memory on the calling thread.
inline void begin() {
  ensure_usable();
  wait_for_current_stream();
  count(counters().library_calls);
}

inline Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                         const at::TensorOptions& options) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  const auto type = c10::typeMetaToScalarType(options.dtype());
  if (strides.empty()) {
    return at::detail::empty_generic(sizes, ruda_allocator(), keys, type,
                                     options.memory_format_opt());
  }
  return at::detail::empty_strided_generic(sizes, strides, ruda_allocator(), keys, type);
}

// A structured operator with a result of its own.
template <class Structured>
class Fresh final : public Structured {
 public:
  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
  }

  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    result_ = new_tensor(sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }

  const Tensor& maybe_get_output(int64_t) override { return result_; }

  Tensor& result() { return result_; }

 private:
  Tensor result_;
};

// Gives an out= tensor the result's sizes and layout, with ATen's warning when it had others.
void resize_result(const Tensor& result, at::IntArrayRef sizes, at::IntArrayRef strides,
                   const at::TensorOptions& options);

// A structured operator that writes a tensor it is given: the in-place and out= forms.
template <class Structured>
class Into final : public Structured {
 public:
  explicit Into(const Tensor& result) : result_(result) {}

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(index, sizes, strides, options);
    TORCH_INTERNAL_ASSERT(strides.empty() || result_.strides() == strides);
  }

  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    if (result_.sizes() != sizes) resize_result(result_, sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options);
    }
  }

  const Tensor& maybe_get_output(int64_t) override { return result_; }

 private:
  const Tensor& result_;
};

template <class Structured, class... Args>
Tensor make(const Args&... args) {
  begin();
  Fresh<Structured> operation;
  operation.meta(args...);
  operation.impl(args..., operation.result());
  return std::move(operation.result());
}

template <class Structured, class... Args>
Tensor& write(Tensor& result, const Args&... args) {
  begin();
  Into<Structured> operation(result);
  operation.meta(args...);
  operation.impl(args..., result);
  return result;
}

// ---- which calls fit ----------------------------------------------------------------------------

inline bool on_ruda(const Tensor& tensor) { return tensor.is_privateuseone(); }

inline bool is_floating(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

// On ruda, real, of this dtype.
inline bool is(const Tensor& tensor, c10::ScalarType type) {
  return tensor.is_privateuseone() && tensor.scalar_type() == type;
}

// A 0-dimensional CPU tensor as an operand beside ruda tensors of `type`: itself, or the Python
// number that it stands for in that dtype; null when the result would have another dtype, or when
// ATen computes with the number's full precision (reduced floats). Valid until the calling thread's
// next call.
const Tensor* number(const Tensor& value, c10::ScalarType type);

// The same for a number that is no tensor.
const Tensor* number(const Scalar& value, c10::ScalarType type);

// An operand beside a ruda tensor of `type`: itself on ruda, or a number.
inline const Tensor* operand(const Tensor& tensor, c10::ScalarType type) {
  if (tensor.is_privateuseone()) return tensor.scalar_type() == type ? &tensor : nullptr;
  return number(tensor, type);
}

// Two operands of one dtype, at least one of them a ruda tensor.
struct Pair {
  const Tensor* left = nullptr;
  const Tensor* right = nullptr;

  Pair(const Tensor& a, const Tensor& b, bool numbers = true) {
    if (on_ruda(a)) {
      left = &a;
      if (numbers || on_ruda(b)) right = operand(b, a.scalar_type());
    } else if (numbers && on_ruda(b)) {
      left = number(a, b.scalar_type());
      right = &b;
    }
  }

  bool fits() const { return left != nullptr && right != nullptr; }
  c10::ScalarType type() const { return right->scalar_type(); }
};

// ---- the boxed kernel for the rest --------------------------------------------------------------

// `name` is a static array. numbers: a 0-dimensional CPU tensor may stand beside ruda tensors.
template <const char* name, bool numbers = true>
const BoxedOperator& boxed() {
  static const BoxedOperator operation(name, numbers);
  return operation;
}

}  // namespace ruda_torch::stub
