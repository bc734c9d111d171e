"""The meaning of the product, in NumPy float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def addmm(
    a: Any, b: Any, bias: Any = None, out: Any = None, alpha: float = 1.0, beta: float = 0.0
) -> np.ndarray:
    """``alpha * (a @ b) + beta * out + bias``; ``out`` counts only when ``beta`` is not 0, the
    product only when ``alpha`` is not 0."""
    left = np.asarray(a, dtype=np.float64)
    right = np.asarray(b, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha == 0.0:
            result = np.zeros_like(np.matmul(np.zeros_like(left), np.zeros_like(right)))
        else:
            result = alpha * np.matmul(left, right)
        if beta != 0.0:
            result = result + beta * np.asarray(out, dtype=np.float64)
        if bias is not None:
            result = result + np.asarray(bias, dtype=np.float64)
    return result
