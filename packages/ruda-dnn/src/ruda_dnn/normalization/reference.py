"""RMSNorm in NumPy float64: what the kernels are compared with."""

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
