// Reading and writing by index on a GPU: the kernels of ruda_dnn/indexing/launch.py by name, with
// its choices. Tensors are contiguous unless said otherwise; a tensor is [outer, size, inner]
// around the dimension that is indexed.
//
// An index outside of its range touches no memory. Without RUDA_ASYNC=1 the call raises IndexError;
// with it nobody waits for the kernel, and what was read is 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ruda_torch::cuda {

struct Axis {
  int64_t outer = 1, size = 1, inner = 1;

  Axis() = default;
  Axis(int64_t outer_, int64_t size_, int64_t inner_) : outer(outer_), size(size_), inner(inner_) {}
  Axis(at::IntArrayRef sizes, int64_t dim);
};

// What is done with the indices of an operator: its name for errors, and whether negative ones
// count from the end.
struct Lookup {
  const char* operation;
  bool wrap = false;
};

// Contiguous int32 or int64 indices on ruda; IndexError for another dtype.
at::Tensor checked_index(const char* operation, const char* argument, const at::Tensor& index);

// out[o, i] = source[o, index[i]]
void take(const Lookup& lookup, const at::Tensor& source, const at::Tensor& index,
          const at::Tensor& out, const Axis& axis);

// target[o, index[i]] = source[o, i]; a source of one element is written everywhere.
void put(const Lookup& lookup, const at::Tensor& target, const at::Tensor& index,
         const at::Tensor& source, const Axis& axis);

// target[o, index[i]] += scale * source[o, i] in the order of i; of one dtype. Nothing is added to
// the place `skipped`.
void accumulate(const Lookup& lookup, const at::Tensor& target, const at::Tensor& index,
                const at::Tensor& source, const Axis& axis, double scale = 1, int64_t skipped = -1);

// out[o, i, n] = source[o, index[o, i, n], n]
void gather(const Lookup& lookup, const at::Tensor& source, const at::Tensor& index,
            const at::Tensor& out, const Axis& axis);

// target[o, index[o, i, n], n] = source[o, i, n], or the source's one element.
void scatter(const Lookup& lookup, const at::Tensor& target, const at::Tensor& index,
             const at::Tensor& source, const Axis& axis);

// target[o, index[o, i, n], n] += source[o, i, n] in the order of i; of one dtype.
void scatter_add(const Lookup& lookup, const at::Tensor& target, const at::Tensor& index,
                 const at::Tensor& source, const Axis& axis);

// Adds step * index to the places; the first call sets them. All of one shape.
void flatten(const Lookup& lookup, const at::Tensor& index, const at::Tensor& places, int64_t size,
             int64_t step, bool first);

// Where the elements that are not 0 are, in order, as int64 [count]. Waits for their number.
at::Tensor positions(const char* operation, const at::Tensor& source);

// out[i, dim] of a contiguous [count, rank] result: the coordinates of places in `sizes`.
void coordinates(const at::Tensor& places, at::IntArrayRef sizes, const at::Tensor& out);

// Zeros below (upper) or above a diagonal of the last two dimensions.
void triangle(const char* operation, const at::Tensor& source, const at::Tensor& out,
              int64_t diagonal, bool upper);

// The first values of the rows of [..., count], in order, as many as the results have room for; NaN
// is the largest, equal values keep their order.
void sort(const char* operation, const at::Tensor& source, const at::Tensor& values,
          const at::Tensor& indices, bool largest);

}  // namespace ruda_torch::cuda
