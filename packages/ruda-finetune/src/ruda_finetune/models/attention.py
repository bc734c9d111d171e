"""The attention that transformers knows as "ruda", and its mask.

Both have to be registered: with the attention alone, transformers prepares no mask, and left
padding is lost without a word.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import FinetuneError

ATTENTION_NAME = "ruda"
_NATIVE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _window_mask(q_length: int, kv_length: int, window: int, device: torch.device) -> torch.Tensor:
    """Causal, aligned at the last key, each query seeing `window` keys: bool [1, 1, Q, KV]."""
    query = torch.arange(q_length, device=device)[:, None] + (kv_length - q_length)
    key = torch.arange(kv_length, device=device)[None, :]
    return ((key <= query) & (key > query - window))[None, None]


def _native_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    window: int | None,
    scale: float | None,
) -> torch.Tensor:
    """ruda's operator: a window without a mask, and a bool mask as it is."""
    # with a window, the queries are the last ones; without, both alignments mean the same
    left, right = (window - 1, 0) if window is not None else (-1, 0 if causal else -1)
    out: torch.Tensor = torch.ops.ruda.attention(
        query, key, value, mask, None, None, scale, left, right, True
    )
    return out


def ruda_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers' AttentionInterface: ruda's own, elsewhere PyTorch's.

    query: [B, H, Q, D]; key, value: [B, G, KV, D], H a multiple of G. Keys and values are not
        repeated for the grouped heads.
    attention_mask: bool (True: attend) or additive [B or 1, 1, Q, KV], or None. None means causal
        (for a causal module and more than one query) as transformers' mask functions use it: the
        queries are then the first Q positions, and keys behind them are unfilled static cache.

    Returns the output [B, Q, H, D] and no weights: a request for weights is an error.
    """
    for option in ("softcap", "position_bias", "s_aux"):
        if kwargs.get(option) is not None:
            raise FinetuneError(
                f"[attention] {option} is not supported by the attention {ATTENTION_NAME!r}: use "
                "the model unfused with attn_implementation='eager'"
            )
    if kwargs.get("output_attentions"):
        raise FinetuneError(
            "[attention] output_attentions=True: attention weights are never formed here; use the "
            "model unfused with attn_implementation='eager'"
        )
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    q_length, kv_length = query.shape[2], key.shape[2]
    causal = is_causal and attention_mask is None and q_length > 1
    if causal and kv_length > q_length:
        key, value = key[:, :, :q_length], value[:, :, :q_length]
        kv_length = q_length
    window = None
    if (
        attention_mask is None
        and sliding_window is not None
        and is_causal
        and kv_length > sliding_window
    ):
        window = sliding_window
    if query.device.type == "ruda" and query.dtype in _NATIVE_DTYPES and dropout == 0.0:
        output = _native_attention(query, key, value, attention_mask, causal, window, scaling)
        return output.transpose(1, 2).contiguous(), None
    if window is not None:
        attention_mask = _window_mask(q_length, kv_length, window, query.device)
        causal = False
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.transpose(1, 2).contiguous(), None


def register_attention() -> str:
    """Register the attention and its mask with transformers; returns the implementation's name.

    Uses the public registries only; calling it again changes nothing.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, ruda_attention_forward)
    # the same meaning of masks as PyTorch's attention: bool, or None where causal says it all
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    return ATTENTION_NAME
