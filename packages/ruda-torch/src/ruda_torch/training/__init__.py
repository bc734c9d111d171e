"""The native training operations: thin names of `torch.ops.ruda.*`, a module and an optimiser."""

from __future__ import annotations

from .adamw import AdamW
from .attention import attention, varlen_attention
from .functional import (
    layer_norm,
    linear_cross_entropy,
    nf4_linear,
    rms_norm,
    rotary,
    silu_mul,
)
from .modules import LayerNorm, RMSNorm

__all__ = [
    "AdamW",
    "LayerNorm",
    "RMSNorm",
    "attention",
    "layer_norm",
    "linear_cross_entropy",
    "nf4_linear",
    "rms_norm",
    "rotary",
    "silu_mul",
    "varlen_attention",
]
