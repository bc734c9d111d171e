// The route of the hot operators: ATen's structured kernel on the ruda tensors themselves, without
// aliases. Its shape rules and errors are ATen's, and the result comes from our pool. The slot of
// PrivateUse1 in ATen's kernel tables leads to the CPU's kernels on the host target, and to our
// device kernels on the cuda target.
//
// TensorIterator converts operands for CPU tensors only. On the host target a call whose operands
// differ in dtype, or are not on ruda, therefore takes the boxed kernel, which also has the errors of
// wrong devices; a 0-dimensional CPU number is converted here. Device kernels convert as they load
// and store.
#pragma once

#include "boxed.h"

#include "../allocator.h"
#include "../compat.h"
#include "../cuda/operators.h"
#include "../counters.h"
#include "../cpu_allocator_proxy.h"
#include "../state.h"
#include "../threads.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

namespace ruda_torch::stub {

using at::Scalar;
using at::Tensor;

// ---- ATen's kernel tables -----------------------------------------------------------------------

// The function of a table on the cuda target.
template <auto& table>
struct OnCuda {
  using Function = typename std::remove_reference_t<decltype(table)>::FnPtr;
  static inline Function function = nullptr;

  template <class First, class... Args>
  static auto run(First&& first, Args&&... args) {
    if (function == nullptr) {
      if constexpr (std::is_convertible_v<First, const at::TensorIteratorBase&>) {
        refuse_table_on_cuda(typeid(table).name(), first.tensor(0));
      } else {
        refuse_table_on_cuda(typeid(table).name(), Tensor());
      }
    }
    return function(std::forward<First>(first), std::forward<Args>(args)...);
  }
};

// For a table that the host target uses too,
template <auto& table>
void use_on_cuda(typename OnCuda<table>::Function function) {
  OnCuda<table>::function = function;
}

template <auto& table, class Function>
struct OnCpu;

template <auto& table, class Return, class First, class... Args>
struct OnCpu<table, Return (*)(First, Args...)> {
  static Return run(First first, Args... args) {
    if (on_cuda()) return OnCuda<table>::run(std::forward<First>(first), std::forward<Args>(args)...);
    OneThread alone;
    if constexpr (std::is_convertible_v<First, const at::TensorIteratorBase&>) {
      if (first.numel() > kFewElements) alone.end();
    }
    return table(c10::kCPU, std::forward<First>(first), std::forward<Args>(args)...);
  }
};

// An elementwise kernel, in parts on the runtime's pool, as many whatever the number of threads; each
// is below what ATen would share. ATen computes the last few values of a row one by one, with other
// roundings than whole vectors: parts of a row end where its vectors do.
template <auto& table, class Function>
struct InParts;

template <auto& table, class Iterator, class... Args>
struct InParts<table, void (*)(Iterator&, Args...)> {
  static void run(Iterator& iterator, Args... args) {
    if (on_cuda()) {
      OnCuda<table>::run(iterator, args...);
      return;
    }
    if (iterator.numel() <= kAtenGrain) {
      table(c10::kCPU, iterator, args...);
      return;
    }
    const int dim = longest_dim(iterator);
    const int64_t length = iterator.shape()[dim];
    constexpr int64_t vectors = 128;  // two of the longest, of one-byte values
    int64_t grain = std::max<int64_t>(1, length / (iterator.numel() / kAtenGrain + 1));
    if (dim == 0) grain = (grain + vectors - 1) / vectors * vectors;
    parallel_parts(length, grain, [&](int64_t begin, int64_t end) {
      const OneThread alone;
      at::TensorIterator part(iterator);
      part.narrow(dim, begin, end - begin);
      table(c10::kCPU, part, args...);
    });
  }

 private:
  // The outermost dimension that gives enough parts, or the longest.
  static int longest_dim(const at::TensorIteratorBase& iterator) {
    constexpr int64_t enough = 32;
    int longest = 0;
    for (int dim = iterator.ndim() - 1; dim >= 0; --dim) {
      if (iterator.shape()[dim] >= enough) return dim;
      if (iterator.shape()[dim] > iterator.shape()[longest]) longest = dim;
    }
    return longest;
  }
};

// The CPU's kernels of the tables stand in for ours: elementwise ones,
template <auto&... tables>
void use_elementwise_kernels() {
  (tables.set_privateuse1_dispatch_ptr(
       &InParts<tables, typename std::remove_reference_t<decltype(tables)>::FnPtr>::run),
   ...);
}

// and others: reductions, which ATen's team shares where they are long, and what has no threads.
template <auto&... tables>
void use_cpu_kernels() {
  (tables.set_privateuse1_dispatch_ptr(
       &OnCpu<tables, typename std::remove_reference_t<decltype(tables)>::FnPtr>::run),
   ...);
}

// and for one that it leaves to the boxed kernel.
template <auto& table>
void use_only_on_cuda(typename OnCuda<table>::Function function) {
  OnCuda<table>::function = function;
  table.set_privateuse1_dispatch_ptr(
      &OnCpu<table, typename std::remove_reference_t<decltype(table)>::FnPtr>::run);
}

// ---- calls --------------------------------------------------------------------------------------

// Before a kernel works on ruda memory on the calling thread.
inline void begin() {
  ensure_usable();
  refuse_capture();
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
                          at::TensorOptions options RUDA_NAMES_PARAMETER) override {
    set_output_raw_strided(index, sizes, strides, options RUDA_NAMES);
  }

  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options RUDA_NAMES_PARAMETER) override {
    result_ = new_tensor(sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options RUDA_NAMES);
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
                          at::TensorOptions options RUDA_NAMES_PARAMETER) override {
    set_output_raw_strided(index, sizes, strides, options RUDA_NAMES);
    TORCH_INTERNAL_ASSERT(strides.empty() || result_.strides() == strides);
  }

  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options RUDA_NAMES_PARAMETER) override {
    if (result_.sizes() != sizes) resize_result(result_, sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Structured>) {
      Structured::set_output_raw_strided(index, sizes, strides, options RUDA_NAMES);
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
