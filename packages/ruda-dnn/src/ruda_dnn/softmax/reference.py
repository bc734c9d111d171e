"""Softmax and its logarithm in NumPy float64: what the kernels are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def log_softmax(x: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def softmax(x: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        power = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
        return power / np.sum(power, axis=axis, keepdims=True)


def softmax_backward(grad: Array, y: Array, axis: int) -> Array:
    """The gradient with respect to x, from the output y."""
    with np.errstate(all="ignore"):
        return y * (grad - np.sum(grad * y, axis=axis, keepdims=True))


def log_softmax_backward(grad: Array, y: Array, axis: int) -> Array:
    """The gradient with respect to x, from the output y (a logarithm)."""
    with np.errstate(all="ignore"):
        return grad - np.exp(y) * np.sum(grad, axis=axis, keepdims=True)
