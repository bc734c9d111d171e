"""Attention over `torch.ops.ruda.attention`: dense and packed, windows, either alignment."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .functional import _check_device

Window = tuple[int | None, int | None]
Align = Literal["top_left", "bottom_right"]


def _sight(operation: str, causal: bool, window: Window, align: str) -> tuple[int, int, bool]:
    """The operator's window (-1: no end) and alignment."""
    if align not in ("top_left", "bottom_right"):
        raise ValueError(f"[{operation}] align: got {align!r}, wanted 'top_left' or 'bottom_right'")
    left, right = window
    if any(side is not None and side < 0 for side in (left, right)):
        raise ValueError(
            f"[{operation}] window: got {window}, wanted numbers of keys or None, twice"
        )
    if causal:
        right = 0
    return (
        -1 if left is None else left,
        -1 if right is None else right,
        align == "bottom_right",
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
) -> Tensor:
    """``softmax(scale * query @ key^T + mask) @ value``, never forming the scores.

    Query i stands at the key p = i (``align="top_left"``, what PyTorch's ``is_causal`` means) or
    p = i + Tk - Tq (``"bottom_right"``: the last query at the last key, as cached decoding wants
    it), and sees the keys ``p - window[0] .. p + window[1]``. A query that sees no key gives zeros;
    keys that are not seen count for nothing, whatever they hold (up to rounding).

    Args:
        query: ``[B, H, Tq, D]`` on ruda, float32, float16 or bfloat16 (autocast's dtype under
            autocast).
        key, value: ``[B, G, Tk, D]`` and ``[B, G, Tk, Dv]``; H is a multiple of G, and nothing is
            repeated for the heads of a group.
        mask: broadcasts to ``[B, H, Tq, Tk]``: bool (True: seen), or float32 or query's dtype,
            added to the scores (-inf: not seen). It has no gradient.
        causal: the same as ``window[1] = 0``.
        window: how many keys before and after its own a query sees; None: all.
        scale: None: ``D ** -0.5``.

    Returns:
        ``[B, H, Tq, Dv]``, in memory as ``[B, Tq, H, Dv]``: its ``transpose(1, 2)`` is
        contiguous.

    Raises:
        ValueError: a wrong shape or value. TypeError: a wrong dtype or device.
        NotImplementedError: the mask requires a gradient.
    """
    _check_device("attention", "query", query)
    sight = _sight("attention", causal, window, align)
    return torch.ops.ruda.attention(query, key, value, mask, None, None, scale, *sight)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
) -> Tensor:
    """:func:`attention` over sequences laid end to end; none sees another.

    Args:
        query: ``[total_q, H, D]`` on ruda. key: ``[total_k, G, D]``. value: ``[total_k, G, Dv]``.
        cu_seqlens_q, cu_seqlens_k: int32 ``[N + 1]`` on ruda: sequence n takes the rows
            ``cu[n] .. cu[n + 1]``; from 0 to the total, never falling.

    Returns:
        ``[total_q, H, Dv]``.

    Raises:
        ValueError: a wrong shape or wrong ends. TypeError: a wrong dtype or device.
    """
    _check_device("varlen_attention", "query", query)
    sight = _sight("varlen_attention", causal, window, align)
    return torch.ops.ruda.attention(
        query, key, value, None, cu_seqlens_q, cu_seqlens_k, scale, *sight
    )
