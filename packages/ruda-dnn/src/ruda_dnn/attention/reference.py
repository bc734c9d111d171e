"""Attention in NumPy float64: what the kernels are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def visible(
    q_length: int,
    k_length: int,
    left: int | None = None,
    right: int | None = None,
    bottom_right: bool = True,
) -> Bools:
    """Which keys each query sees: bool ``[Tq, Tk]``."""
    position = np.arange(q_length)[:, None] + (k_length - q_length if bottom_right else 0)
    key = np.arange(k_length)[None, :]
    seen = np.ones((q_length, k_length), bool)
    if left is not None:
        seen &= key >= position - left
    if right is not None:
        seen &= key <= position + right
    return seen


def _weights(
    q: Array, k: Array, seen: Bools, bias: Array | None, scale: float
) -> tuple[Array, Array]:
    """One head: weights ``[Tq, Tk]`` and lse ``[Tq]``. Keys that are not seen weigh exactly 0."""
    with np.errstate(all="ignore"):
        scores = scale * (q @ k.T)
        if bias is not None:
            scores = scores + bias
        scores = np.where(seen, scores, -np.inf)
        if scores.shape[1] == 0:
            return np.zeros_like(scores), np.full(scores.shape[0], -np.inf)
        peak = scores.max(axis=1, keepdims=True)
        peak = np.where(peak == -np.inf, 0.0, peak)
        weights = np.where(seen, np.exp(scores - peak), 0.0)
        total = weights.sum(axis=1, keepdims=True)
        lse = np.where(total[:, 0] == 0, -np.inf, peak[:, 0] + np.log(total[:, 0]))
        return np.where(seen, weights / np.where(total == 0, 1.0, total), 0.0), lse


def _sum(weights: Array, seen: Bools, values: Array) -> Array:
    """``weights @ values`` in which a pair that is not seen counts for nothing, NaN included."""
    if np.isfinite(values).all():
        return weights @ values
    with np.errstate(all="ignore"):
        products = weights[:, :, None] * values[None, :, :]
        return np.where(seen[:, :, None], products, 0.0).sum(axis=1)


def attention(
    q: Array,
    k: Array,
    v: Array,
    seen: Bools | None = None,
    bias: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """``q[B, Tq, H, D]``, ``k[B, Tk, G, D]``, ``v[B, Tk, G, Dv]`` -> ``out[B, Tq, H, Dv]``,
    ``lse[B, H, Tq]``. seen and bias broadcast to ``[B, H, Tq, Tk]``; a bias of -inf hides."""
    batch, q_length, heads, width = q.shape
    k_length, groups = k.shape[1], k.shape[2]
    scale = width**-0.5 if scale is None else scale
    seen, bias = _full(seen, bias, (batch, heads, q_length, k_length))
    out = np.zeros((batch, q_length, heads, v.shape[-1]))
    lse = np.zeros((batch, heads, q_length))
    for b, h in np.ndindex(batch, heads):
        g = h // (heads // groups)
        head_bias = None if bias is None else bias[b, h]
        weights, lse[b, h] = _weights(q[b, :, h], k[b, :, g], seen[b, h], head_bias, scale)
        out[b, :, h] = _sum(weights, seen[b, h], v[b, :, g])
    return out, lse


def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    grad: Array,
    seen: Bools | None = None,
    bias: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients of ``sum(out * grad)``: dq, dk, dv in the shapes of q, k and v."""
    batch, q_length, heads, width = q.shape
    k_length, groups = k.shape[1], k.shape[2]
    scale = width**-0.5 if scale is None else scale
    seen, bias = _full(seen, bias, (batch, heads, q_length, k_length))
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    with np.errstate(all="ignore"):
        for b, h in np.ndindex(batch, heads):
            g = h // (heads // groups)
            pairs = seen[b, h]
            head_bias = None if bias is None else bias[b, h]
            weights, _ = _weights(q[b, :, h], k[b, :, g], pairs, head_bias, scale)
            out = _sum(weights, pairs, v[b, :, g])
            delta = (grad[b, :, h] * out).sum(axis=1, keepdims=True)
            dweights = grad[b, :, h] @ v[b, :, g].T
            dscores = np.where(pairs, weights * (dweights - delta), 0.0)
            dq[b, :, h] = scale * _sum(dscores, pairs, k[b, :, g])
            dk[b, :, g] += scale * _sum(dscores.T, pairs.T, q[b, :, h])
            dv[b, :, g] += _sum(weights.T, pairs.T, grad[b, :, h])
    return dq, dk, dv


def _full(
    seen: Bools | None, bias: Array | None, shape: tuple[int, ...]
) -> tuple[Bools, Array | None]:
    seen = np.broadcast_to(np.True_ if seen is None else seen, shape)
    if bias is not None:
        bias = np.broadcast_to(bias, shape)
        seen = seen & (bias != -np.inf)
    return seen, bias
