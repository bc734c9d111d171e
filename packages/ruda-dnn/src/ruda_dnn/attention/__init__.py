"""Attention in flash form, dense and packed, forward and backward. README.md has the meaning."""

from __future__ import annotations

from typing import Literal

from ruda_runtime import Tensor, empty

from .. import _native
from ..errors import AttentionError, AttentionTypeError

__all__ = [
    "AttentionError",
    "attention",
    "attention_backward",
    "attention_with_stats",
    "varlen_attention",
    "varlen_attention_backward",
    "varlen_attention_with_stats",
]

Window = tuple[int | None, int | None]
Align = Literal["top_left", "bottom_right"]


def _rows(tensor: Tensor, operation: str, name: str, rank: int) -> Tensor:
    """The tensor, or a copy whose last axis is contiguous."""
    if not isinstance(tensor, Tensor):
        raise AttentionTypeError(
            f"[{operation}] {name}: got {type(tensor).__name__}, wanted a ruda_runtime.Tensor"
        )
    if len(tensor.shape) != rank:
        wanted = "[batch, length, heads, width]" if rank == 4 else "[total, heads, width]"
        raise AttentionError(
            f"[{operation}] {name}: got shape {list(tensor.shape)}, wanted {wanted}"
        )
    adjacent = tensor.strides[-1] == 1 or tensor.shape[-1] <= 1
    return tensor if adjacent else tensor.contiguous()


def _ends(tensor: Tensor, operation: str, name: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise AttentionTypeError(
            f"[{operation}] {name}: got {type(tensor).__name__}, wanted a ruda_runtime.Tensor"
        )
    return tensor.contiguous()


def _sight(operation: str, causal: bool, window: Window, align: str) -> tuple[int, int, bool]:
    """The native window (-1: no end) and whether the last query stands at the last key."""
    if align not in ("top_left", "bottom_right"):
        raise AttentionError(
            f"[{operation}] align: got {align!r}, wanted 'top_left' or 'bottom_right'"
        )
    left, right = window
    for side in (left, right):
        if side is not None and side < 0:
            raise AttentionError(
                f"[{operation}] window: got {window}, wanted numbers of keys or None, twice"
            )
    if causal:
        right = 0
    return (
        -1 if left is None else left,
        -1 if right is None else right,
        align == "bottom_right",
    )


def _scale(scale: float | None, q: Tensor) -> float:
    return float(max(q.shape[-1], 1) ** -0.5 if scale is None else scale)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
) -> Tensor:
    """``softmax(scale * q @ k.T + mask) @ v`` for every head, without forming the scores.

    Query i stands at the key p = i (``align="top_left"``) or p = i + Tk - Tq (``"bottom_right"``,
    where the last query stands at the last key, as cached decoding wants it), and sees the keys
    ``p - window[0] .. p + window[1]``. A query that sees no key gives zeros. Keys that are not seen
    count for nothing, even where they hold NaN (how blocks of keys are summed may depend on them:
    the last bits may differ).

    Args:
        q: ``[B, Tq, H, D]``, float32, float16 or bfloat16. Any strides; a last axis that is not
            contiguous is copied first.
        k: ``[B, Tk, G, D]``; H is a multiple of G, and query head h reads head ``h // (H / G)``.
        v: ``[B, Tk, G, Dv]``.
        mask: ``[B or 1, H or 1, Tq or 1, Tk]``, any strides: bool (True: seen), or float32 or q's
            dtype, added to the scores (-inf: not seen).
        causal: the same as ``window[1] = 0``.
        window: how many keys before and after its own a query sees; None: all.
        scale: None: ``D ** -0.5``.

    Returns:
        ``[B, Tq, H, Dv]`` in q's dtype; float32 arithmetic, rounded once.

    Raises:
        AttentionError: a wrong shape or value; its TypeError subclass for a wrong dtype.
    """
    return _dense("attention", q, k, v, mask, causal, window, align, scale, stats=False)[0]


def attention_with_stats(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`attention` for training: ``(out, lse)``.

    lse, float32 ``[B, H, Tq]``, is the log of the sum of exponentials; -inf where no key is seen.

    Raises:
        AttentionError: as :func:`attention`.
    """
    out, lse = _dense("attention", q, k, v, mask, causal, window, align, scale, stats=True)
    assert lse is not None
    return out, lse


def _dense(
    operation: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: Window,
    align: Align,
    scale: float | None,
    *,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    q, k, v = (_rows(t, operation, n, 4) for t, n in ((q, "q"), (k, "k"), (v, "v")))
    sight = _sight(operation, causal, window, align)
    batch, length, heads, _ = q.shape
    out = empty((batch, length, heads, v.shape[-1]), q.dtype_name)
    lse = empty((batch, heads, length), "float32") if stats else None
    _native.attention_forward(q, k, v, mask, None, None, out, lse, _scale(scale, q), *sight)
    return out, lse


def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
    wanted: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients ``(dq, dk, dv)`` of :func:`attention` that ``wanted`` asks for.

    Args:
        out, lse: from :func:`attention_with_stats` with the same arguments.
        grad: the gradient of out, ``[B, Tq, H, Dv]``.

    Returns:
        contiguous gradients in q's dtype, shapes of q, k and v; None for those not wanted. The mask
        has no gradient. Bit-equal for any number of threads.

    Raises:
        AttentionError: as :func:`attention`.
    """
    operation = "attention_backward"
    named = ((q, "q"), (k, "k"), (v, "v"), (out, "out"), (grad, "grad"))
    q, k, v, out, grad = (_rows(t, operation, n, 4) for t, n in named)
    sight = _sight(operation, causal, window, align)
    grads = _gradients(q, k, v, wanted)
    _native.attention_backward(
        q, k, v, mask, None, None, out, lse, grad, *grads, _scale(scale, q), *sight
    )
    return grads


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dq, dk, dv = (
        empty(tensor.shape, q.dtype_name) if asked else None
        for tensor, asked in zip((q, k, v), wanted, strict=True)
    )
    return dq, dk, dv


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
) -> Tensor:
    """:func:`attention` over sequences of any lengths laid end to end; none sees another.

    Args:
        q: ``[total_q, H, D]``. k: ``[total_k, G, D]``. v: ``[total_k, G, Dv]``.
        cu_seqlens_q, cu_seqlens_k: int32 ``[N + 1]``: sequence n takes the rows
            ``cu[n] .. cu[n + 1]``; from 0 to the total, never falling. Empty sequences are fine.

    Returns:
        ``[total_q, H, Dv]`` in q's dtype.

    Raises:
        AttentionError: as :func:`attention`.
    """
    return _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window, align, scale, stats=False)[
        0
    ]


def varlen_attention_with_stats(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`varlen_attention` for training: ``(out, lse)`` with lse float32 ``[H, total_q]``."""
    out, lse = _packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal, window, align, scale, stats=True
    )
    assert lse is not None
    return out, lse


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    window: Window,
    align: Align,
    scale: float | None,
    *,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    operation = "varlen_attention"
    q, k, v = (_rows(t, operation, n, 3) for t, n in ((q, "q"), (k, "k"), (v, "v")))
    ends_q = _ends(cu_seqlens_q, operation, "cu_seqlens_q")
    ends_k = _ends(cu_seqlens_k, operation, "cu_seqlens_k")
    sight = _sight(operation, causal, window, align)
    total, heads, _ = q.shape
    out = empty((total, heads, v.shape[-1]), q.dtype_name)
    lse = empty((heads, total), "float32") if stats else None
    _native.attention_forward(q, k, v, None, ends_q, ends_k, out, lse, _scale(scale, q), *sight)
    return out, lse


def varlen_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    *,
    causal: bool = False,
    window: Window = (None, None),
    align: Align = "bottom_right",
    scale: float | None = None,
    wanted: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of :func:`varlen_attention`; see :func:`attention_backward`."""
    operation = "varlen_attention_backward"
    named = ((q, "q"), (k, "k"), (v, "v"), (out, "out"), (grad, "grad"))
    q, k, v, out, grad = (_rows(t, operation, n, 3) for t, n in named)
    ends_q = _ends(cu_seqlens_q, operation, "cu_seqlens_q")
    ends_k = _ends(cu_seqlens_k, operation, "cu_seqlens_k")
    sight = _sight(operation, causal, window, align)
    grads = _gradients(q, k, v, wanted)
    _native.attention_backward(
        q, k, v, None, ends_q, ends_k, out, lse, grad, *grads, _scale(scale, q), *sight
    )
    return grads
