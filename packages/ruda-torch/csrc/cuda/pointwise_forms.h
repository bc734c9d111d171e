// The three forms of a structured operator on the cuda target: with a result of its own, in place, out=.
#pragma once

#include "cuda/operators.h"
#include "cuda/pointwise.h"
#include "ops/stub_route.h"

namespace ruda_torch::cuda {

using at::Scalar;
using at::Tensor;

// The in-place form writes the first argument.
template <class Structured, class First, class... Rest>
struct Forms {
  static Tensor fresh(First self, Rest... rest) { return stub::make<Structured>(self, rest...); }
  static Tensor& in_place(Tensor& self, Rest... rest) {
    if constexpr (std::is_same_v<First, const Tensor&>) {
      stub::write<Structured>(self, self, rest...);
    }
    return self;
  }
  static Tensor& out(First self, Rest... rest, Tensor& result) {
    return stub::write<Structured>(result, self, rest...);
  }
};

// Registers the forms; a null name: the operator has no such form, or another file has it.
template <class Structured, class... Args>
void add_forms(CudaOperators& library, const char* fresh, const char* in_place, const char* out) {
  using All = Forms<Structured, Args...>;
  if (fresh != nullptr) library.impl(fresh, TORCH_FN(All::fresh));
  if (in_place != nullptr) library.impl(in_place, TORCH_FN(All::in_place));
  if (out != nullptr) library.impl(out, TORCH_FN(All::out));
}

// An operator with a kernel of ours in place of its own `impl`.
template <class Structured, class... Args>
Tensor make(const char* op, std::initializer_list<Scalar> numbers, const Args&... args) {
  stub::begin();
  stub::Fresh<Structured> operation;
  operation.meta(args...);
  pointwise(op, operation, numbers);
  return std::move(operation.result());
}

template <class Structured, class... Args>
Tensor& write(const char* op, std::initializer_list<Scalar> numbers, Tensor& result,
              const Args&... args) {
  stub::begin();
  stub::Into<Structured> operation(result);
  operation.meta(args...);
  pointwise(op, operation, numbers);
  return result;
}

// What a kernel table's slot holds: the operator over the iterator's operands.
#define RUDA_POINTWISE(op) [](auto& iterator) { ::ruda_torch::cuda::pointwise(op, iterator); }

}  // namespace ruda_torch::cuda
