"""AdamW and gradient statistics in NumPy float64: what the kernels are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def adamw_step(
    master: Array,
    gradient: Array,
    first: Array,
    second: Array,
    *,
    step: int,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    gradient_scale: float = 1.0,
) -> tuple[Array, Array, Array]:
    """One step; returns the new master, first moment and second moment."""
    gradient = gradient * gradient_scale
    first = betas[0] * first + (1.0 - betas[0]) * gradient
    second = betas[1] * second + (1.0 - betas[1]) * gradient * gradient
    size = learning_rate / (1.0 - betas[0] ** step)
    denominator = np.sqrt(second) / math.sqrt(1.0 - betas[1] ** step) + epsilon
    master = master * (1.0 - learning_rate * weight_decay) - size * first / denominator
    return master, first, second


def gradient_norm(gradients: Sequence[Array], scale: float = 1.0) -> float:
    """The L2 norm of all gradients together, times ``scale``."""
    return abs(scale) * math.sqrt(sum(float(np.sum(g * g)) for g in gradients))
