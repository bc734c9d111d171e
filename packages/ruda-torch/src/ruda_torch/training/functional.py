"""Functions over `torch.ops.ruda.*`. Each is one dispatcher operator with autograd and autocast.

Gradients are first-order: `create_graph=True` raises NotImplementedError. Inputs that are not
contiguous are copied first.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _check_device(operation: str, name: str, tensor: Tensor) -> None:
    """PyTorch's own error for a missing kernel is a page long and does not say what to do."""
    if tensor.device.type not in ("ruda", "meta"):
        raise TypeError(
            f"[{operation}] {name}: got a tensor on {tensor.device}, wanted one on ruda; move it "
            'with .to("ruda")'
        )


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """``x / sqrt(mean(x^2, last axis) + eps) * weight`` in float32, rounded once.

    Args:
        x: ``[..., H]`` on ruda, float32, float16 or bfloat16.
        weight: ``[H]``, float32 or x's dtype, or None.
        eps: positive; None is ``torch.finfo(x.dtype).eps``.

    Returns:
        ``[..., H]`` in x's dtype. Under autocast x keeps its dtype.

    Raises:
        ValueError: a wrong shape or eps.
        TypeError: a wrong dtype or device.
    """
    _check_device("rms_norm", "x", x)
    if eps is None:
        # Any number will do for a dtype without one: the operator refuses it by name.
        eps = torch.finfo(x.dtype).eps if x.is_floating_point() else 1.0
    return torch.ops.ruda.rms_norm(x, weight, eps)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis, rounded once.

    Args:
        x: ``[..., H]`` on ruda, float32, float16 or bfloat16.
        weight, bias: ``[H]``, float32 or x's dtype, or None.
        eps: positive.

    Returns:
        ``[..., H]`` in x's dtype. Under autocast x keeps its dtype.

    Raises:
        ValueError: a wrong shape or eps.
        TypeError: a wrong dtype or device.
    """
    _check_device("layer_norm", "x", x)
    return torch.ops.ruda.layer_norm(x, weight, bias, eps)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``; SiLU is rounded to the dtype before the product.

    Args:
        gate, up: one shape and one dtype (float32, float16 or bfloat16) on ruda; no broadcasting.
            Under autocast, operands of two dtypes are brought to the wider one.

    Raises:
        ValueError: the shapes differ.
        TypeError: a wrong dtype or device.
    """
    _check_device("silu_mul", "gate", gate)
    return torch.ops.ruda.silu_mul(gate, up)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding: ``x * cos + rotate_half(x) * sin``, rotate_half((a, b)) = (-b, a).

    Args:
        x: ``[B, T, H, D]`` on ruda, float32, float16 or bfloat16. Any strides; read in place while
            the last one is 1. Under autocast x keeps its dtype.
        cos, sin: ``[B or 1, T, R]``, both float32 or both x's dtype; constants. R is even and at
            most D, the features from R on are copied. Their halves need not be equal.

    Returns:
        ``[B, T, H, D]``, contiguous, in x's dtype; float32 arithmetic, rounded once.

    Raises:
        ValueError: a wrong shape. TypeError: a wrong dtype or device. NotImplementedError: cos or
            sin requires a gradient.
    """
    _check_device("rotary", "x", x)
    return torch.ops.ruda.rotary(x, cos, sin)


def nf4_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    codebook: Tensor,
    bias: Tensor | None = None,
    *,
    out_features: int,
    in_features: int,
    block_size: int = 64,
    tile_rows: int = 128,
) -> Tensor:
    """``x @ W^T + bias`` with a frozen NF4 weight that is never made dense.

    Args:
        x: ``[..., in_features]`` on ruda, float32, float16 or bfloat16 (autocast's dtype under
            autocast). Only x has a gradient.
        packed: uint8, two codes a byte, the first value in the high nibble.
        scales: float32, one absolute maximum a block of ``block_size`` values.
        codebook: float32 ``[16]``.
        bias: ``[out_features]``, not trainable.
        tile_rows: rows of the weight decoded at a time; bounds the scratch memory.

    Returns:
        ``[..., out_features]`` in x's dtype.

    Raises:
        ValueError: a wrong shape. TypeError: a wrong dtype or device. NotImplementedError: scales,
            codebook or bias requires a gradient.
    """
    _check_device("nf4_linear", "x", x)
    return torch.ops.ruda.nf4_linear(
        x, packed, scales, codebook, bias, out_features, in_features, block_size, tile_rows
    )


def linear_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    token_chunk: int | None = None,
    ignore_index: int = -100,
) -> tuple[Tensor, Tensor]:
    """Cross entropy of ``hidden @ head^T + bias``, never holding the logits of all tokens.

    Where hidden, head or bias require gradients they are computed in the forward pass, chunk by
    chunk; backward only scales them. Ignored tokens cost nothing.

    Args:
        hidden: ``[..., H]`` on ruda, float32, float16 or bfloat16 (autocast's dtype under
            autocast).
        head: ``[V, H]``.
        target: int64, shape of hidden without the last axis; ``ignore_index`` or in ``0..V-1``.
        bias: ``[V]`` or None.
        token_chunk: tokens at a time; None: the fewest equal parts of at most 48 MiB of float32
            logits.

    Returns:
        ``loss_sum`` (float32, no dimensions) and ``count``, the number of valid tokens (int64, no
        dimensions): the mean is ``loss_sum / count``. Without a valid token both are 0.

    Raises:
        ValueError: a wrong shape or a target outside the vocabulary.
        TypeError: a wrong dtype or device.
    """
    _check_device("linear_cross_entropy", "hidden", hidden)
    if hidden.shape[:-1] != target.shape:
        raise ValueError(
            f"[linear_cross_entropy] target: got shape {list(target.shape)}, wanted "
            f"{list(hidden.shape[:-1])}, hidden's without the last axis"
        )
    return torch.ops.ruda.linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        head,
        bias,
        target.reshape(-1),
        0 if token_chunk is None else token_chunk,
        ignore_index,
    )
