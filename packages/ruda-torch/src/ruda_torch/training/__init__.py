"""The native training operations: thin names of `torch.ops.ruda.*`, a module and an optimiser."""

from __future__ import annotations

from .adamw import AdamW
from .attention import attention, varlen_attention
from .functional import linear_cross_entropy, nf4_linear, rms_norm, silu_mul
from .modules import RMSNorm

__all__ = [
    "AdamW",
    "RMSNorm",
    "attention",
    "linear_cross_entropy",
    "nf4_linear",
    "rms_norm",
    "silu_mul",
    "varlen_attention",
]
