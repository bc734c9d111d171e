"""Rotary position embedding, forward and backward. See README.md for the mathematics."""

from __future__ import annotations

from ruda_runtime import Tensor

from .. import _native
from .._tensors import dense, empty_like
from ..errors import RotaryError, RotaryTypeError

__all__ = ["RotaryError", "rotary", "rotary_backward"]


def _adjacent(x: Tensor, operation: str, name: str) -> Tensor:
    """The tensor itself where its features are adjacent, else a contiguous copy."""
    if isinstance(x, Tensor) and len(x.shape) == 4 and x.strides[3] == 1:
        return x
    return dense(x, operation, name, RotaryTypeError)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + rotate_half(x) * sin`` with ``rotate_half((a, b)) = (-b, a)``.

    Args:
        x: ``[B, T, H, D]``, float32, float16 or bfloat16; any strides (read in place while the
            features are adjacent, so the heads of a projection need no copy).
        cos, sin: ``[B or 1, T, R]``, both float32 or both x's dtype. R is even and at most D; the
            features from R on are copied.

    Returns:
        ``[B, T, H, D]``, contiguous, in x's dtype; float32 arithmetic, rounded once.

    Raises:
        RotaryError: a wrong shape; its TypeError subclass for a wrong dtype.
    """
    x = _adjacent(x, "rotary", "x")
    cos = dense(cos, "rotary", "cos", RotaryTypeError)
    sin = dense(sin, "rotary", "sin", RotaryTypeError)
    y = empty_like(x)
    _native.rotary_forward(x, cos, sin, y)
    return y


def rotary_backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of :func:`rotary` with respect to x: the transposed map, applied to ``grad``.

    The two halves of cos, and of sin, need not be equal.

    Raises:
        RotaryError: as :func:`rotary`.
    """
    operation = "rotary_backward"
    grad = _adjacent(grad, operation, "grad")
    cos = dense(cos, operation, "cos", RotaryTypeError)
    sin = dense(sin, operation, "sin", RotaryTypeError)
    dx = empty_like(grad)
    _native.rotary_backward(grad, cos, sin, dx)
    return dx
