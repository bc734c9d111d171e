/* Checks that several entries of this package share, on top of <ruda/entry.hpp>. */
#ifndef RUDA_DNN_ENTRIES_HPP
#define RUDA_DNN_ENTRIES_HPP

#include <ruda/dnn.h>
#include <ruda/entry.hpp>

#include <ruda/variants.hpp>

/* RUDA_HOST(function)(arguments): the variant for this processor. */
#define RUDA_HOST(function) RUDA_CHOOSE(::ruda::api()->cpu_level(), function)

namespace ruda {

/* On this process's target and contiguous. */
inline int32_t check_dense(const ruda_view* view, const char* operation, const char* name,
                           ruda_error* error) {
  RUDA_TRY(check_target(view, operation, name, error));
  return check_contiguous(view, operation, name, error);
}

/* A dense activation: float32, float16 or bfloat16. */
inline int32_t check_activation(const ruda_view* view, const char* operation, const char* name,
                                ruda_error* error) {
  RUDA_TRY(check_dense(view, operation, name, error));
  return check_dtype(view, {RUDA_FLOAT32, RUDA_FLOAT16, RUDA_BFLOAT16}, operation, name, error);
}

/* Dense, with the shape and the dtype of an activation that has been checked. */
inline int32_t check_like(const ruda_view* view, const ruda_view* model, const char* operation,
                          const char* name, const char* model_name, ruda_error* error) {
  RUDA_TRY(check_dense(view, operation, name, error));
  RUDA_TRY(check_same_shape(view, model, operation, name, model_name, error));
  return check_dtype(view, {model->dtype}, operation, name, error);
}

/* Each family registers its kernels; called once when the module is imported. */
int32_t register_normalization(ruda_error* error);
int32_t register_activation(ruda_error* error);
int32_t register_loss(ruda_error* error);
int32_t register_rotary(ruda_error* error);
int32_t register_softmax(ruda_error* error);
int32_t register_optim(ruda_error* error);
int32_t register_attention(ruda_error* error);

}  // namespace ruda

#endif
