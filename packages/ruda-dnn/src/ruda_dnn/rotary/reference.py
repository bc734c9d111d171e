"""Rotary position embedding in NumPy float64: what the kernel is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rotary(x: Array, cos: Array, sin: Array) -> Array:
    """``x[B, T, H, D]``, ``cos, sin[B or 1, T, R]`` -> ``[B, T, H, D]``."""
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    half = width // 2
    swapped = np.concatenate([-turned[..., half:], turned[..., :half]], axis=-1)
    with np.errstate(all="ignore"):
        turned = turned * cos[:, :, None] + swapped * sin[:, :, None]
    return np.concatenate([turned, rest], axis=-1)


def rotary_backward(grad: Array, cos: Array, sin: Array) -> Array:
    """The gradient of ``sum(rotary(x) * grad)``: the transposed linear map."""
    width = cos.shape[-1]
    turned, rest = grad[..., :width], grad[..., width:]
    half = width // 2
    with np.errstate(all="ignore"):
        through = turned * sin[:, :, None]
        back = np.concatenate([through[..., half:], -through[..., :half]], axis=-1)
        turned = turned * cos[:, :, None] + back
    return np.concatenate([turned, rest], axis=-1)
