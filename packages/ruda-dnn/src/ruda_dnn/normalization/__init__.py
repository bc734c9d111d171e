"""RMSNorm and LayerNorm over the last axis, with backward. See README.md for the mathematics."""

from __future__ import annotations

from ruda_runtime import Tensor, empty

from .. import _native
from .._tensors import dense, dense_or_none, empty_like, row_count
from ..errors import NormalizationError, NormalizationTypeError

__all__ = [
    "NormalizationError",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_with_stats",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_backward_select",
    "rms_norm_with_stats",
]


def _inputs(x: Tensor, weight: Tensor | None, operation: str) -> tuple[Tensor, Tensor | None]:
    return (
        dense(x, operation, "x", NormalizationTypeError),
        dense_or_none(weight, operation, "weight", NormalizationTypeError),
    )


def rms_norm(x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x^2, last axis) + epsilon) * weight``.

    Args:
        x: ``[..., H]``, float32, float16 or bfloat16, H >= 1; any strides.
        weight: ``[H]``, float32 or x's dtype.
        epsilon: positive and finite in float32.

    Returns:
        ``[..., H]`` in x's dtype; float32 arithmetic, rounded once.

    Raises:
        NormalizationError: a wrong shape or epsilon; its TypeError subclass for a wrong dtype.
    """
    x, weight = _inputs(x, weight, "rms_norm")
    y = empty_like(x)
    _native.rms_norm_forward(x, weight, y, None, epsilon)
    return y


def rms_norm_with_stats(
    x: Tensor, weight: Tensor | None = None, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """:func:`rms_norm` for training: ``(y, rstd)`` with rstd float32 ``[rows]``.

    Raises:
        NormalizationError: as :func:`rms_norm`.
    """
    x, weight = _inputs(x, weight, "rms_norm")
    y = empty_like(x)
    rstd = empty((row_count(x.shape),), "float32")
    _native.rms_norm_forward(x, weight, y, rstd, epsilon)
    return y, rstd


def rms_norm_backward(
    x: Tensor, weight: Tensor | None, grad: Tensor, rstd: Tensor, *, parts: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Both gradients of RMSNorm: ``(dx, dweight)``; dweight is None without a weight.

    See :func:`rms_norm_backward_select`.
    """
    dx, dweight = rms_norm_backward_select(x, weight, grad, rstd, (True, True), parts=parts)
    assert dx is not None
    return dx, dweight


def rms_norm_backward_select(
    x: Tensor,
    weight: Tensor | None,
    grad: Tensor,
    rstd: Tensor,
    mask: tuple[bool, bool],
    *,
    parts: int = 0,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of RMSNorm that ``mask`` asks for; nothing is allocated for the others.

    Args:
        x: ``[..., H]`` as in the forward pass.
        weight: ``[H]`` or None.
        grad: the output's gradient, shape and dtype of x.
        rstd: float32 ``[rows]`` from :func:`rms_norm_with_stats`.
        mask: whether dx and dweight are wanted. Without a weight there is no dweight.
        parts: float32 partial sums of the weight gradient; 0: ``clamp(ceil(rows/32), 1, 128)``.
            The result depends on it in the last bits and never on the number of threads.

    Returns:
        dx in x's dtype or None, dweight in the weight's dtype or None.

    Raises:
        NormalizationError: a wrong shape; its TypeError subclass for a wrong dtype.
    """
    operation = "rms_norm_backward"
    x, weight = _inputs(x, weight, operation)
    grad = dense(grad, operation, "grad", NormalizationTypeError)
    rstd = dense(rstd, operation, "rstd", NormalizationTypeError)
    dx = empty_like(x) if mask[0] else None
    dweight = empty_like(weight) if mask[1] and weight is not None else None
    _native.rms_norm_backward(x, weight, grad, rstd, dx, dweight, parts)
    return dx, dweight


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` over the last axis.

    Args:
        x: ``[..., H]``, float32, float16 or bfloat16, H >= 1; any strides.
        weight, bias: ``[H]``, float32 or x's dtype, or None.
        epsilon: positive and finite in float32.

    Returns:
        ``[..., H]`` in x's dtype; float32 arithmetic, rounded once.

    Raises:
        NormalizationError: a wrong shape or epsilon; its TypeError subclass for a wrong dtype.
    """
    x, weight = _inputs(x, weight, "layer_norm")
    bias = dense_or_none(bias, "layer_norm", "bias", NormalizationTypeError)
    y = empty_like(x)
    _native.layer_norm_forward(x, weight, bias, y, None, None, epsilon)
    return y


def layer_norm_with_stats(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`layer_norm` for training: ``(y, mean, rstd)``, the last two float32 ``[rows]``.

    Raises:
        NormalizationError: as :func:`layer_norm`.
    """
    x, weight = _inputs(x, weight, "layer_norm")
    bias = dense_or_none(bias, "layer_norm", "bias", NormalizationTypeError)
    y = empty_like(x)
    mean, rstd = (empty((row_count(x.shape),), "float32") for _ in range(2))
    _native.layer_norm_forward(x, weight, bias, y, mean, rstd, epsilon)
    return y, mean, rstd


def layer_norm_backward(
    x: Tensor,
    weight: Tensor | None,
    grad: Tensor,
    mean: Tensor,
    rstd: Tensor,
    mask: tuple[bool, bool, bool] = (True, True, True),
    *,
    parts: int = 0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients ``(dx, dweight, dbias)`` of LayerNorm that ``mask`` asks for.

    Args:
        x: ``[..., H]`` as in the forward pass.
        weight: ``[H]`` or None.
        grad: the output's gradient, shape and dtype of x.
        mean, rstd: float32 ``[rows]`` from :func:`layer_norm_with_stats`.
        mask: which gradients are wanted. Without a weight there is no dweight.
        parts: as in :func:`rms_norm_backward_select`.

    Returns:
        dx in x's dtype, dweight in the weight's dtype, dbias in the weight's dtype or, without a
        weight, in float32; None for those not wanted.

    Raises:
        NormalizationError: a wrong shape; its TypeError subclass for a wrong dtype.
    """
    operation = "layer_norm_backward"
    x, weight = _inputs(x, weight, operation)
    grad = dense(grad, operation, "grad", NormalizationTypeError)
    mean = dense(mean, operation, "mean", NormalizationTypeError)
    rstd = dense(rstd, operation, "rstd", NormalizationTypeError)
    dx = empty_like(x) if mask[0] else None
    dweight = empty_like(weight) if mask[1] and weight is not None else None
    dbias = None
    if mask[2]:
        dbias = empty((x.shape[-1],), "float32" if weight is None else weight.dtype_name)
    _native.layer_norm_backward(x, weight, grad, mean, rstd, dx, dweight, dbias, parts)
    return dx, dweight, dbias
