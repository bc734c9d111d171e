"""How a Hugging Face model reaches ruda's kernels: the attention interface and fused modules."""

from __future__ import annotations

from .. import _device as _device
from .attention import ATTENTION_NAME, register_attention
from .fuse import FAMILIES, FusionReport, fuse_model
from .modules import FusedAttention, FusedMLP, FusedRMSNorm

__all__ = [
    "ATTENTION_NAME",
    "FAMILIES",
    "FusedAttention",
    "FusedMLP",
    "FusedRMSNorm",
    "FusionReport",
    "fuse_model",
    "register_attention",
]
