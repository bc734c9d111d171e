"""silu(gate) * up in NumPy float64: what the kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _sigmoid(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def silu_mul(gate: Array, up: Array, to_storage: Callable[[Array], Array]) -> Array:
    """``to_storage`` rounds to the dtype under test: SiLU is stored before the product."""
    with np.errstate(all="ignore"):
        return to_storage(gate * _sigmoid(gate)) * up


def silu_mul_backward(
    gate: Array, up: Array, grad: Array, to_storage: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """``dgate`` (of the unrounded SiLU) and ``dup`` (with the rounded one)."""
    with np.errstate(all="ignore"):
        s = _sigmoid(gate)
        dgate = grad * up * s * (1.0 + gate * (1.0 - s))
        dup = grad * to_storage(gate * s)
    return dgate, dup
