"""The modules that replace a family's attention, MLP and norm.

Each takes over the submodules, parameters and settings of the module it replaces, under the same
names, so that state-dict keys stay and projections may be NF4 or LoRA layers, now or later. On
`ruda` they call ruda's operators; elsewhere the same formula in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..lora.fused import gated_down, project, remember_norm
from .attention import ATTENTION_NAME, ruda_attention_forward


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; float32 inside, x's dtype outside."""
    if x.device.type == "ruda":
        return torch.ops.ruda.rms_norm(x.contiguous(), weight, eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.to(wide.dtype)).to(x.dtype)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    if gate.device.type == "ruda":
        return torch.ops.ruda.silu_mul(gate.contiguous(), up.contiguous())
    return F.silu(gate) * up


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [B, T, heads, D] in the half-split layout; cos, sin: [B or 1, T, D]."""
    if x.device.type == "ruda":
        return torch.ops.ruda.rotary(x, cos, sin)
    cos, sin = cos.to(x.dtype).unsqueeze(2), sin.to(x.dtype).unsqueeze(2)
    half = x.shape[-1] // 2
    # a roll by half brings each value's partner; the first half carries the rotation's minus sign
    signed_sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
    return torch.addcmul(x * cos, x.roll(half, dims=-1), signed_sin)


class _Replacement(nn.Module):
    """A module that takes over another's children, parameters, buffers, mode and settings."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self._parameters = dict(original._parameters)
        self._buffers = dict(original._buffers)
        self._non_persistent_buffers_set = set(original._non_persistent_buffers_set)
        self._modules = dict(original._modules)
        self.training = original.training
        torch_state = vars(nn.Module()).keys()
        for name, value in vars(original).items():
            if name not in torch_state:
                setattr(self, name, value)
        self.replaces = type(original).__name__

    def extra_repr(self) -> str:
        return f"replaces={self.replaces}"


class FusedRMSNorm(_Replacement):
    """RMS normalisation through `ruda::rms_norm`.

    The result has the activation's dtype and is rounded once. `offset` is added to the weight: 1
    for Gemma, whose stored weight is the difference from one.
    """

    weight: torch.Tensor

    def __init__(self, original: nn.Module, offset: float = 0.0) -> None:
        super().__init__(original)
        self.offset = offset
        eps = getattr(original, "variance_epsilon", None)
        self.epsilon = float(original.eps if eps is None else eps)  # type: ignore[arg-type]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if self.offset:
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + self.offset
        if weight.dtype not in (torch.float32, hidden_states.dtype):
            weight = weight.to(torch.float32)
        result = rms_norm(hidden_states, weight, self.epsilon)
        if result.requires_grad and result.device.type == "ruda":
            remember_norm(result, hidden_states, weight, self.epsilon)
        return result

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.epsilon}, offset={self.offset:g}"


class FusedMLP(_Replacement):
    """`down_proj(silu(gate_proj(x)) * up_proj(x))` with the middle in one `ruda::silu_mul`."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = project(x, (self.gate_proj, self.up_proj))
        result = gated_down(gate, up, self.down_proj)
        return self.down_proj(silu_mul(gate, up)) if result is None else result


class FusedAttention(_Replacement):
    """Self-attention of the five families: projections, optional head norms, rotary, cache, SDPA.

    Arguments and results are those of the transformers module it replaces, under either name of the
    cache (`cache`, `past_key_values`).
    """

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    config: Any
    layer_idx: int
    head_dim: int
    scaling: float
    attention_dropout: float

    def __init__(self, original: nn.Module, window: int | None = None) -> None:
        super().__init__(original)
        self.window = window

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        batch, length = hidden_states.shape[:-1]
        heads = (batch, length, -1, self.head_dim)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (part.view(heads) for part in project(hidden_states, projections))
        if "q_norm" in self._modules:
            query, key = self.q_norm(query), self.k_norm(key)
        cos, sin = position_embeddings
        query, key = rotate(query, cos, sin).transpose(1, 2), rotate(key, cos, sin).transpose(1, 2)
        value = value.transpose(1, 2)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        output, weights = self._attention()(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.window,
            **kwargs,
        )
        return self.o_proj(output.reshape(batch, length, -1)), weights

    def _attention(self) -> Callable[..., tuple[torch.Tensor, Any]]:
        """The implementation that the config asks for, where ours and eager are ours."""
        name = self.config._attn_implementation
        if name in (ATTENTION_NAME, "eager"):
            return ruda_attention_forward
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS.get_interface(name, ruda_attention_forward)
