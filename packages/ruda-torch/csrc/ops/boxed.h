// The boxed kernel: one piece of code that serves every operator of the explicit list
// (src/ruda_torch/data/host_operators.inc): on the host target by calling ATen's CPU kernel on
// aliases, on the cuda target by the implementation that cuda/operators.h has for it, if any.
#pragma once

#include "../cuda/target.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace ruda_torch {

// "aten::add.Tensor" in the dispatcher.
c10::OperatorHandle find_operator(const std::string& name);

// A boxed operator that an unboxed kernel hands the rest of its cases to. cpu_scalars:
// 0-dimensional CPU tensors may stand beside tensors of ruda.
class BoxedOperator {
 public:
  explicit BoxedOperator(const char* name, bool cpu_scalars = false);

  template <class Return, class... Args>
  Return call(Args... args) const {
    if (on_cuda() && on_cuda_ != nullptr) {
      return on_cuda_->call<Return, Args...>(
          handle_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), std::forward<Args>(args)...);
    }
    return kernel_.call<Return, Args...>(
        handle_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), std::forward<Args>(args)...);
  }

 private:
  c10::OperatorHandle handle_;
  c10::KernelFunction kernel_;
  const c10::KernelFunction* on_cuda_;
};

// The operators of the explicit list, without "aten::".
std::vector<std::string> host_operators();

// Serves one more operator ("library::name.overload") by the boxed kernel, for the life of the
// process. For tests of its rules.
void serve_boxed(const std::string& name, bool cpu_scalars);

}  // namespace ruda_torch
