// ATen's operators on the cuda target.
//
// An operator that ATen computes through one of its kernel tables keeps that route: the slot of
// PrivateUse1 leads to a function of this folder (ops/stub_route.h). Every other one has an
// implementation of its own, registered here, which the boxed kernel of the host target hands its
// calls to:
//
//   RUDA_CUDA_OPERATORS(library) {
//     library.impl("aten::embedding", TORCH_FN(embedding));
//   }
//
// The function has the operator's C++ signature. What has neither is refused by name.
#pragma once

#include "target.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <string>

namespace ruda_torch {

class CudaOperators {
 public:
  template <class Function>
  void impl(const char* name, Function function) {
    add(name, c10::KernelFunction::makeFromUnboxedFunction(function));
  }

 private:
  static void add(const char* name, c10::KernelFunction kernel);
};

// The implementation of "aten::add.Tensor" on cuda, or null. It stays where it is.
const c10::KernelFunction* find_cuda_operator(const std::string& name);

// NotImplementedError: `operation` has no kernel for the cuda target; `tensor` says for which dtype.
[[noreturn]] void refuse_on_cuda(const std::string& operation, const at::Tensor& tensor);

// The same for one of ATen's kernel tables, by the name of its C++ type.
[[noreturn]] void refuse_table_on_cuda(const char* type_name, const at::Tensor& tensor);

// Names of all operators with an implementation of their own, sorted.
std::vector<std::string> cuda_operators();

struct CudaOperatorsInit {
  explicit CudaOperatorsInit(void (*body)(CudaOperators&)) {
    CudaOperators library;
    body(library);
  }
};

}  // namespace ruda_torch

#define RUDA_CUDA_OPERATORS(library)                                                \
  static void ruda_cuda_operators(::ruda_torch::CudaOperators& library);            \
  static const ::ruda_torch::CudaOperatorsInit ruda_cuda_operators_init(            \
      &ruda_cuda_operators);                                                        \
  static void ruda_cuda_operators(::ruda_torch::CudaOperators& library)
