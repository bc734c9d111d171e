"""Softmax and its logarithm over any axis, with backward. See README.md for the mathematics."""

from __future__ import annotations

from ruda_runtime import Tensor

from .. import _native
from .._tensors import dense, empty_like
from ..errors import SoftmaxError, SoftmaxTypeError

__all__ = ["SoftmaxError", "log_softmax", "log_softmax_backward", "softmax", "softmax_backward"]


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def _forward(x: Tensor, axis: int, logarithm: bool) -> Tensor:
    x = dense(x, "log_softmax" if logarithm else "softmax", "x", SoftmaxTypeError)
    y = empty_like(x)
    _native.softmax_forward(x, y, _axis(axis, len(x.shape)), logarithm)
    return y


def _backward(grad: Tensor, y: Tensor, axis: int, logarithm: bool) -> Tensor:
    operation = "log_softmax_backward" if logarithm else "softmax_backward"
    grad = dense(grad, operation, "grad", SoftmaxTypeError)
    y = dense(y, operation, "y", SoftmaxTypeError)
    dx = empty_like(y)
    _native.softmax_backward(grad, y, dx, _axis(axis, len(y.shape)), logarithm)
    return dx


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """``e^x / sum(e^x)`` along an axis.

    Args:
        x: float32, float16 or bfloat16, at least one axis; any strides.
        axis: may be negative.

    Returns:
        x's shape and dtype; float32 arithmetic, rounded once. A row of -inf alone is NaN.

    Raises:
        SoftmaxError: no such axis; its TypeError subclass for a wrong dtype.
    """
    return _forward(x, axis, False)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """``x - log(sum(e^x))`` along an axis; arguments and errors as in :func:`softmax`."""
    return _forward(x, axis, True)


def softmax_backward(grad: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The gradient of x from the output's gradient and the output ``y`` of :func:`softmax`.

    Raises:
        SoftmaxError: no such axis or shapes that differ; its TypeError subclass for a wrong dtype.
    """
    return _backward(grad, y, axis, False)


def log_softmax_backward(grad: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The gradient of x from the output's gradient and the output ``y`` of :func:`log_softmax`.

    Raises:
        SoftmaxError: as :func:`softmax_backward`.
    """
    return _backward(grad, y, axis, True)
