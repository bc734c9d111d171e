/* Argument structs of the operations that ruda-dnn registers with ruda-runtime.
 * Every output is allocated by the caller; a null view marks an absent input or an output that is
 * not wanted (nothing is computed or allocated for it). */
#ifndef RUDA_DNN_H
#define RUDA_DNN_H

#include <ruda/abi.h>

namespace ruda {

/* "rms_norm.forward": y[..., H] = x * rstd * weight, rstd = 1/sqrt(mean(x^2) + epsilon).
 * weight[H] in x's dtype or float32, or null; rstd float32[rows], or null. */
RUDA_ARGUMENTS(rms_norm_forward_args,
  const ruda_view* x;
  const ruda_view* weight;
  const ruda_view* y;
  const ruda_view* rstd;
  double epsilon;)

/* "rms_norm.backward": dx[..., H] in x's dtype, dweight[H] in the weight's dtype; either may be
 * null. The weight gradient is summed in `parts` float32 partials (0: clamp(ceil(rows/32), 1, 128)),
 * whatever the thread count. */
RUDA_ARGUMENTS(rms_norm_backward_args,
  const ruda_view* x;
  const ruda_view* weight;
  const ruda_view* grad;
  const ruda_view* rstd;
  const ruda_view* dx;
  const ruda_view* dweight;
  int64_t parts;)

/* "layer_norm.forward": y[..., H] = (x - mean) * rstd * weight + bias, rstd = 1/sqrt(var + epsilon)
 * with the variance over H values (not H - 1). weight[H] and bias[H] in x's dtype or float32, or
 * null; mean and rstd float32[rows], each may be null. */
RUDA_ARGUMENTS(layer_norm_forward_args,
  const ruda_view* x;
  const ruda_view* weight;
  const ruda_view* bias;
  const ruda_view* y;
  const ruda_view* mean;
  const ruda_view* rstd;
  double epsilon;)

/* "layer_norm.backward": dx[..., H] in x's dtype, dweight[H] and dbias[H] in x's dtype or float32;
 * each may be null. The last two are summed in `parts` float32 partials, as in rms_norm.backward. */
RUDA_ARGUMENTS(layer_norm_backward_args,
  const ruda_view* x;
  const ruda_view* weight;
  const ruda_view* grad;
  const ruda_view* mean;
  const ruda_view* rstd;
  const ruda_view* dx;
  const ruda_view* dweight;
  const ruda_view* dbias;
  int64_t parts;)

/* "softmax.forward": y = softmax(x) along `axis` (0-based), or its logarithm. One shape, one dtype,
 * contiguous. */
RUDA_ARGUMENTS(softmax_forward_args,
  const ruda_view* x;
  const ruda_view* y;
  int64_t axis;
  int32_t logarithm;)

/* "softmax.backward": dx from the output's gradient and the output y of the forward pass. */
RUDA_ARGUMENTS(softmax_backward_args,
  const ruda_view* grad;
  const ruda_view* y;
  const ruda_view* dx;
  int64_t axis;
  int32_t logarithm;)

/* "rotary.forward" and "rotary.backward": x[B, T, H, D] with any strides and adjacent features
 * (D contiguous), cos and sin [B or 1, T, R] contiguous, both float32 or both x's dtype, R even and
 * at most D; y[B, T, H, D] contiguous, x's dtype. With the halves of the first R features
 * x = (a, b), cos = (c, d), sin = (s, t):
 *   forward: (a*c - b*s, b*d + a*t)     backward: (a*c + b*t, b*d - a*s), the transposed map.
 * The other D - R features are copied. y must not share memory with x. */
RUDA_ARGUMENTS(rotary_args,
  const ruda_view* x;
  const ruda_view* cos;
  const ruda_view* sin;
  const ruda_view* y;)

/* "silu_mul.forward": out = round(silu(gate)) * up, same shape and dtype, contiguous. */
RUDA_ARGUMENTS(silu_mul_forward_args,
  const ruda_view* gate;
  const ruda_view* up;
  const ruda_view* out;)

/* "silu_mul.backward": dgate and dup; either may be null. */
RUDA_ARGUMENTS(silu_mul_backward_args,
  const ruda_view* gate;
  const ruda_view* up;
  const ruda_view* grad;
  const ruda_view* dgate;
  const ruda_view* dup;)

/* "linear_cross_entropy.forward": sum over the valid rows of
 *   -log softmax(hidden[T, H] @ head[V, H]^T + bias[V])[target[T]]
 * written to loss float32[] (a 0-dimensional view); count int64[] gets the number of valid rows.
 * Rows whose target equals ignore_index cost nothing. A target outside 0..V-1 is an error.
 * dhidden[T, H] float32, dhead[V, H] float32 and dbias[V] float32 may be null: they get the gradients
 * of the sum, computed chunk by chunk in the same pass. token_chunk rows of logits at a time
 * (0: the fewest chunks whose float32 logits take at most 48 MiB each). */
RUDA_ARGUMENTS(linear_cross_entropy_args,
  const ruda_view* hidden;
  const ruda_view* head;
  const ruda_view* bias;
  const ruda_view* target;
  const ruda_view* loss;
  const ruda_view* count;
  const ruda_view* dhidden;
  const ruda_view* dhead;
  const ruda_view* dbias;
  int64_t token_chunk;
  int64_t ignore_index;)

/* "adamw.step": one fused update of `tensors` parameters (torch.optim.AdamW's order of operations).
 * Arrays have `tensors` entries. `parameters` are float32, float16 or bfloat16 and contiguous;
 * `masters` are float32, or null where the parameter itself is float32; gradients have the
 * parameter's dtype or float32. gradient_scale multiplies each gradient on the way in. */
RUDA_ARGUMENTS(adamw_step_args,
  const ruda_view* const* parameters;
  const ruda_view* const* gradients;
  const ruda_view* const* masters;
  const ruda_view* const* first_moments;
  const ruda_view* const* second_moments;
  int64_t tensors;
  int64_t step;
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  double gradient_scale;)

/* "gradient.unscale": every gradient is multiplied in place by `scale` (1 leaves them untouched);
 * *finite becomes 0 when any value is NaN or infinite. */
RUDA_ARGUMENTS(gradient_unscale_args,
  const ruda_view* const* gradients;
  int64_t tensors;
  double scale;
  int32_t* finite;)

/* "gradient.norm": the global L2 norm (float64 accumulation in a fixed order) of `tensors`
 * gradients times `scale`, and whether all of them are finite; gradients are only read. */
RUDA_ARGUMENTS(gradient_norm_args,
  const ruda_view* const* gradients;
  int64_t tensors;
  double scale;
  double* norm;
  int32_t* finite;)

/* "attention.forward": out = softmax(scale * q k^T + mask) v, head by head, in flash form.
 *
 * Dense: q[B, Tq, H, D], k[B, Tk, G, D], v[B, Tk, G, Dv], out[B, Tq, H, Dv], lse float32[B, H, Tq].
 * Packed (both cu_seqlens given): q[total, H, D], k and v[total, G, ...], out[total, H, Dv],
 * lse float32[H, total]; cu_seqlens int32[N + 1] hold the sequences' ends, from 0 to the total.
 * H is a multiple of G; query head h reads head h / (H / G) of k and v. float32, float16 or bfloat16;
 * strides are free where the last axis is contiguous. lse (the log of the sum of exponentials) and
 * mask may be null.
 *
 * Which keys query i of a sequence sees: with p = i, or i + Tk - Tq where bottom_right is not 0, the
 * keys p - window_left .. p + window_right; a negative window has no end on that side (causal:
 * window_right = 0). mask[B or 1, H or 1, Tq or 1, Tk], any strides, dense only: bool (0: not seen) or
 * float32 or q's dtype (added; -infinity: not seen). A key that is not seen counts for nothing,
 * whatever it holds; a query that sees no key gives zeros and lse -infinity. */
RUDA_ARGUMENTS(attention_forward_args,
  const ruda_view* q;
  const ruda_view* k;
  const ruda_view* v;
  const ruda_view* mask;
  const ruda_view* cu_seqlens_q;
  const ruda_view* cu_seqlens_k;
  const ruda_view* out;
  const ruda_view* lse;
  double scale;
  int64_t window_left;
  int64_t window_right;
  int32_t bottom_right;)

/* "attention.backward": dq, dk and dv (any of them may be null) from out, lse and the gradient grad
 * of out. Shapes are those of q, k and v. */
RUDA_ARGUMENTS(attention_backward_args,
  const ruda_view* q;
  const ruda_view* k;
  const ruda_view* v;
  const ruda_view* mask;
  const ruda_view* cu_seqlens_q;
  const ruda_view* cu_seqlens_k;
  const ruda_view* out;
  const ruda_view* lse;
  const ruda_view* grad;
  const ruda_view* dq;
  const ruda_view* dk;
  const ruda_view* dv;
  double scale;
  int64_t window_left;
  int64_t window_right;
  int32_t bottom_right;)

} /* namespace ruda */

#endif /* RUDA_DNN_H */
