"""RMSNorm and LayerNorm in NumPy float64: what the kernels are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rms_norm(x: Array, weight: Array | None, epsilon: float) -> tuple[Array, Array]:
    """``x[..., H]``, ``weight[H]`` -> ``y[..., H]``, ``rstd[rows]``."""
    with np.errstate(all="ignore"):
        rstd = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon)
        y = x * rstd
        if weight is not None:
            y = y * weight
    return y, rstd.reshape(-1)


def rms_norm_backward(
    x: Array, weight: Array | None, grad: Array, epsilon: float
) -> tuple[Array, Array]:
    """Gradients of ``sum(y * grad)``: ``dx[..., H]`` and ``dweight[H]``."""
    with np.errstate(all="ignore"):
        rstd = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon)
        normal = x * rstd
        upper = grad if weight is None else grad * weight
        dx = rstd * (upper - normal * np.mean(upper * normal, axis=-1, keepdims=True))
        dweight = (grad * normal).reshape(-1, x.shape[-1]).sum(axis=0)
    return dx, dweight


def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, epsilon: float
) -> tuple[Array, Array, Array]:
    """``x[..., H]``, ``weight[H]``, ``bias[H]`` -> ``y[..., H]``, ``mean[rows]`` and ``rstd``."""
    with np.errstate(all="ignore"):
        mean = np.mean(x, axis=-1, keepdims=True)
        rstd = 1.0 / np.sqrt(np.mean((x - mean) ** 2, axis=-1, keepdims=True) + epsilon)
        y = (x - mean) * rstd
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
    return y, mean.reshape(-1), rstd.reshape(-1)


def layer_norm_backward(
    x: Array, weight: Array | None, grad: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """Gradients of ``sum(y * grad)``: ``dx[..., H]``, ``dweight[H]`` and ``dbias[H]``."""
    with np.errstate(all="ignore"):
        mean = np.mean(x, axis=-1, keepdims=True)
        rstd = 1.0 / np.sqrt(np.mean((x - mean) ** 2, axis=-1, keepdims=True) + epsilon)
        normal = (x - mean) * rstd
        upper = grad if weight is None else grad * weight
        dx = upper - np.mean(upper, axis=-1, keepdims=True)
        dx = rstd * (dx - normal * np.mean(upper * normal, axis=-1, keepdims=True))
        dweight = (grad * normal).reshape(-1, x.shape[-1]).sum(axis=0)
        dbias = grad.reshape(-1, x.shape[-1]).sum(axis=0)
    return dx, dweight, dbias
