/* What the entries of this package share, on top of <ruda/entry.hpp>. */
#ifndef RUDA_BLAS_ENTRIES_HPP
#define RUDA_BLAS_ENTRIES_HPP

#include <ruda/blas.h>
#include <ruda/entry.hpp>

#include "strided.hpp"

namespace ruda {

/* On this process's target and of a type that products are computed in. */
inline int32_t check_operand(const ruda_view* view, const char* operation, const char* name,
                             ruda_error* error) {
  RUDA_TRY(check_target(view, operation, name, error));
  return check_dtype(view, {RUDA_FLOAT32, RUDA_FLOAT16, RUDA_BFLOAT16}, operation, name, error);
}

/* The last two dimensions of a view. */
inline blas::matrix matrix_of(const ruda_view& view) {
  return {static_cast<char*>(view.data), view.strides[view.ndim - 2], view.strides[view.ndim - 1],
          view.dtype, item_size(view.dtype)};
}

/* A vector as a matrix whose rows are all that vector; absent: data is null. */
inline blas::matrix row_of(const ruda_view* vector) {
  if (vector == nullptr) return {};
  return {static_cast<char*>(vector->data), 0, vector->strides[0], vector->dtype,
          item_size(vector->dtype)};
}

/* Refuses a result that shares memory with itself or with an operand. */
int32_t check_result_memory(const ruda_view& out, const char* operation, ruda_error* error);
int32_t check_no_overlap(const ruda_view& out, const ruda_view* operand, const char* operation,
                         const char* name, ruda_error* error);

/* Each family registers its kernels; called once when the module is imported. */
int32_t register_gemm(ruda_error* error);
int32_t register_nf4(ruda_error* error);

}  // namespace ruda

#endif
