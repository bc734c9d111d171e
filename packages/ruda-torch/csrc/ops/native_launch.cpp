#include "native_launch.h"

#include <c10/util/Exception.h>

#include <string>

namespace ruda_torch {

const ruda_kernel* Kernel::find() const {
  const ruda_kernel* kernel = found_.load(std::memory_order_acquire);
  if (kernel != nullptr) return kernel;
  kernel = api()->find_kernel(name_);
  TORCH_CHECK_NOT_IMPLEMENTED(kernel != nullptr, "[", name_, "] no package has registered this "
                              "kernel for the host target; import ruda_torch, which imports them");
  TORCH_CHECK(kernel->layout == layout_, "[", name_, "] ", kernel->package, " was built with "
              "another layout of the arguments than ruda-torch; install packages of one ABI: pip "
              "install --upgrade ", kernel->package, " ruda-torch");
  found_.store(kernel, std::memory_order_release);
  return kernel;
}

void Kernel::launch(const void* arguments) const {
  const ruda_kernel* kernel = find();
  ruda_error error;
  error.code = RUDA_OK;
  error.message[0] = 0;
  check(api()->launch(kernel, arguments, nullptr, &error), error);
}

const ruda_view* Views::operator()(const at::Tensor& tensor, const char* argument) {
  if (!device_.has_value()) {
    TORCH_CHECK_TYPE(tensor.device().type() == kRuda, "[", operation_, "] ", argument,
                     ": got a tensor on ", tensor.device(), ", wanted one on ruda:0");
    device_ = tensor.device();
  }
  TORCH_CHECK(tensor.device() == *device_, "[", operation_, "] Expected all tensors to be on the "
              "same device: got ", argument, " on ", tensor.device(), ", wanted ", *device_);
  views_.push_back(view_of(tensor, operation_));
  return &views_.back();
}

const ruda_view* Views::matrix(const at::Tensor& tensor, int64_t rows, int64_t columns,
                               const char* argument) {
  (*this)(tensor, argument);
  shapes_.push_back({{rows, columns}, {columns, 1}});
  ruda_view& view = views_.back();
  view.sizes = shapes_.back().sizes;
  view.strides = shapes_.back().strides;
  view.ndim = 2;
  return &view;
}

const ruda_view* Views::flat(const at::Tensor& tensor, const char* argument, int64_t index) {
  TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.is_non_overlapping_and_dense(), "[", operation_,
                    "] ", argument, index < 0 ? "" : "[" + std::to_string(index) + "]",
                    ": got strides ", tensor.strides(), " for shape ", tensor.sizes(),
                    ", wanted a tensor without gaps or overlaps; call contiguous()");
  (*this)(tensor, argument);
  shapes_.push_back({{tensor.numel(), 0}, {1, 0}});
  ruda_view& view = views_.back();
  view.sizes = shapes_.back().sizes;
  view.strides = shapes_.back().strides;
  view.ndim = 1;
  return &view;
}

}  // namespace ruda_torch
