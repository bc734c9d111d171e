// Attention by ruda-dnn's kernels, for torch.ops.ruda.attention and for ATen's own attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace ruda_torch {

// What the queries see: see attention_forward_args in <ruda/dnn.h>.
struct Sight {
  double scale;
  int64_t window_left;
  int64_t window_right;
  bool bottom_right;
};

// Dense: query [B, H, Tq, D], key [B, G, Tk, D], value [B, G, Tk, Dv] and a mask that broadcasts to
// [B, H, Tq, Tk], gives [B, H, Tq, Dv] in the memory order [B, Tq, H, Dv] and, with_stats,
// float32 [B, H, Tq]. Packed (with the sequences' ends): [total, H, D], ..., [H, total].
std::tuple<at::Tensor, at::Tensor> run_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& ends_q,
    const std::optional<at::Tensor>& ends_k, const Sight& sight, bool with_stats);

// The gradients that `wanted` asks for, in the memory order of the results.
std::tuple<at::Tensor, at::Tensor, at::Tensor> run_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& ends_q, const std::optional<at::Tensor>& ends_k,
    const at::Tensor& out, const at::Tensor& logsumexp, const Sight& sight,
    std::array<bool, 3> wanted);

}  // namespace ruda_torch
