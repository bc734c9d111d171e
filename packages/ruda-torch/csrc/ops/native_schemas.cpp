// The schemas of torch.ops.ruda: the native training operators. Kernels are in the native_*.cpp
// files beside this one; gradients in native_autograd.cpp, autocast rules in native_autocast.cpp.

#include <torch/library.h>

TORCH_LIBRARY(ruda, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float eps) -> Tensor");
  m.def("rms_norm_with_stats(Tensor x, Tensor? weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor rstd, bool[2] output_mask)"
      " -> (Tensor dx, Tensor dweight)");

  m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def(
      "layer_norm_with_stats(Tensor x, Tensor? weight, Tensor? bias, float eps)"
      " -> (Tensor y, Tensor mean, Tensor rstd)");
  // The bias tells the dtype of its gradient.
  m.def(
      "layer_norm_backward(Tensor grad, Tensor x, Tensor mean, Tensor rstd, Tensor? weight,"
      " Tensor? bias, bool[3] output_mask) -> (Tensor dx, Tensor dweight, Tensor dbias)");

  // Dense: [B, H, T, D] and a mask that broadcasts to [B, H, Tq, Tk]; packed: [total, H, D]. A window of
  // -1 has no end; bottom_right: the last query stands at the last key. The mask has no gradient.
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? cu_seqlens_q,"
      " Tensor? cu_seqlens_k, float? scale, int window_left, int window_right, bool bottom_right)"
      " -> Tensor");
  m.def(
      "attention_with_stats(Tensor query, Tensor key, Tensor value, Tensor? mask,"
      " Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, float? scale, int window_left,"
      " int window_right, bool bottom_right) -> (Tensor out, Tensor logsumexp)");
  m.def(
      "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask,"
      " Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor out, Tensor logsumexp, float? scale,"
      " int window_left, int window_right, bool bottom_right, bool[3] output_mask)"
      " -> (Tensor dquery, Tensor dkey, Tensor dvalue)");

  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor");
  m.def(
      "silu_mul_backward(Tensor grad, Tensor gate, Tensor up, bool[2] output_mask)"
      " -> (Tensor dgate, Tensor dup)");

  // cos and sin are constants: they have no gradient.
  m.def("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  m.def("rotary_backward(Tensor grad, Tensor cos, Tensor sin) -> Tensor");

  m.def(
      "nf4_linear(Tensor x, Tensor packed, Tensor scales, Tensor codebook, Tensor? bias,"
      " int out_features, int in_features, int block_size, int tile_rows) -> Tensor");
  m.def(
      "nf4_linear_input_grad(Tensor grad, Tensor packed, Tensor scales, Tensor codebook,"
      " int out_features, int in_features, int block_size, int tile_rows) -> Tensor");

  // x W^T + bias + low B^T with low = scaling * x A^T [M, r] in x's dtype; W and bias are frozen.
  m.def(
      "nf4_lora_linear(Tensor x, Tensor packed, Tensor scales, Tensor codebook, Tensor? bias,"
      " Tensor lora_a, Tensor lora_b, float scaling, int out_features, int in_features,"
      " int block_size, int tile_rows) -> Tensor");
  m.def("lora_low(Tensor x, Tensor lora_a, float scaling) -> Tensor");
  m.def(
      "nf4_lora_linear_from_low(Tensor x, Tensor low, Tensor packed, Tensor scales,"
      " Tensor codebook, Tensor? bias, Tensor lora_b, int out_features, int in_features,"
      " int block_size, int tile_rows) -> Tensor");
  m.def(
      "nf4_lora_linear_backward(Tensor grad, Tensor x, Tensor low, Tensor packed, Tensor scales,"
      " Tensor codebook, Tensor lora_a, Tensor lora_b, float scaling, int out_features,"
      " int in_features, int block_size, int tile_rows, bool[3] output_mask)"
      " -> (Tensor dx, Tensor da, Tensor db)");

  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor head, Tensor? bias, Tensor target,"
      " int token_chunk, int ignore_index) -> (Tensor loss_sum, Tensor count)");
  // With the float32 gradients of the sum; an output that the mask does not ask for is undefined.
  m.def(
      "linear_cross_entropy_with_gradients(Tensor hidden, Tensor head, Tensor? bias, Tensor target,"
      " int token_chunk, int ignore_index, bool[3] output_mask)"
      " -> (Tensor loss_sum, Tensor count, Tensor dhidden, Tensor dhead, Tensor dbias)");

  // A float32 parameter is its own master. One launch updates all tensors of the call.
  m.def(
      "adamw_step_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] masters,"
      " Tensor(c!)[] first_moments, Tensor(d!)[] second_moments, int step, float learning_rate,"
      " float beta1, float beta2, float epsilon, float weight_decay, float gradient_scale) -> ()");
  // `finite`: int32[], 1 when every stored gradient is finite.
  m.def("unscale_gradients_(Tensor(a!)[] gradients, float scale) -> Tensor finite");
  // float64[] and int32[]: twelve bytes to read back.
  m.def("gradient_norm(Tensor[] gradients, float scale) -> (Tensor norm, Tensor finite)");
}
