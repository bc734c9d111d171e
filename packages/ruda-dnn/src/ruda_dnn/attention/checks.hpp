/* What attention's arguments must be. */
#ifndef RUDA_DNN_ATTENTION_CHECKS_HPP
#define RUDA_DNN_ATTENTION_CHECKS_HPP

#include <ruda/dnn.h>

#include <cstdint>
#include <vector>

#include "device.hpp"

namespace ruda {

/* The views of both operations; grad and the gradients are absent in the forward pass. */
struct attention_arguments {
  const ruda_view *q, *k, *v, *mask, *cu_q, *cu_k, *out, *lse, *grad, *dq, *dk, *dv;
  double scale;
  int64_t left, right;
  bool bottom_right;
  std::vector<int32_t> q_ends, k_ends;  // the values of cu_q and cu_k, once they are read

  explicit attention_arguments(const attention_forward_args& args)
      : q(args.q), k(args.k), v(args.v), mask(args.mask), cu_q(args.cu_seqlens_q),
        cu_k(args.cu_seqlens_k), out(args.out), lse(args.lse), grad(nullptr), dq(nullptr),
        dk(nullptr), dv(nullptr), scale(args.scale), left(args.window_left),
        right(args.window_right), bottom_right(args.bottom_right != 0) {}
  explicit attention_arguments(const attention_backward_args& args)
      : q(args.q), k(args.k), v(args.v), mask(args.mask), cu_q(args.cu_seqlens_q),
        cu_k(args.cu_seqlens_k), out(args.out), lse(args.lse), grad(args.grad), dq(args.dq),
        dk(args.dk), dv(args.dv), scale(args.scale), left(args.window_left),
        right(args.window_right), bottom_right(args.bottom_right != 0) {}

  bool packed() const { return cu_q != nullptr; }
  int32_t rank() const { return packed() ? 3 : 4; }
};

/* Of inputs, lse and the mask. */
int32_t check_attention_inputs(const attention_arguments& args, const char* operation,
                               ruda_error* error);

/* A tensor of q's leading sizes and heads, and of v's width. */
int32_t check_attention_result(const ruda_view* view, const attention_arguments& args,
                               const char* operation, const char* name, ruda_error* error);

/* A tensor of the model's shape and of this dtype. */
int32_t check_attention_gradient(const ruda_view* view, const ruda_view* model, int32_t dtype,
                                 const char* operation, const char* name, const char* model_name,
                                 ruda_error* error);

/* Fills q_ends and k_ends of checked arguments, and checks them. */
int32_t read_sequence_ends(attention_arguments& args, const char* operation, ruda_error* error);

attention_lengths longest_lengths(const attention_arguments& args);

}  // namespace ruda

#endif
