// Pointwise device kernels: operators of ruda_dnn/pointwise/launch.py by name.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <initializer_list>

namespace ruda_torch {

// Two tensors of the same sizes have one dtype and their elements without gaps in the same order: a copy
// is one of bytes.
bool same_memory_order(const at::Tensor& target, const at::Tensor& source);

// target = source, converted; both on ruda, of the same sizes and any strides.
void device_copy(const at::Tensor& target, const at::Tensor& source);

namespace cuda {

// Computes the output of `iterator` in the arithmetic of `type`. The operator's operands are the
// iterator's inputs, of any dtype and with any strides, or 0-dimensional CPU tensors, and then
// `numbers`; at most three inputs, five operands in all.
void pointwise(const char* op, at::TensorIteratorBase& iterator, c10::ScalarType type,
               std::initializer_list<c10::Scalar> numbers = {});

// In the dtype that the iterator's operands have in common.
inline void pointwise(const char* op, at::TensorIteratorBase& iterator,
                      std::initializer_list<c10::Scalar> numbers = {}) {
  pointwise(op, iterator, iterator.common_dtype(), numbers);
}

// result[i] = start + i * step, for a contiguous result.
void arange(const at::Tensor& result, const c10::Scalar& start, const c10::Scalar& step);

}  // namespace cuda

}  // namespace ruda_torch
