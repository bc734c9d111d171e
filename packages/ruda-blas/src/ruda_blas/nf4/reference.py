"""The meaning of the NF4 operations, in NumPy float64."""

from __future__ import annotations

from typing import Any

import numpy as np

CODEBOOK = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]
)  # fmt: skip


def scales(weight: Any, block_size: int) -> np.ndarray:
    """The largest magnitude of each block of the flat row-major weight, padded with zeros."""
    flat = np.ravel(np.asarray(weight, dtype=np.float64))
    padded = np.pad(flat, (0, -len(flat) % block_size))
    return np.abs(padded.reshape(-1, block_size)).max(axis=1, initial=0.0)


def codes(weight: Any, block_size: int) -> np.ndarray:
    """The nearest code of each value over its block's scale, the lower one of two equally near."""
    flat = np.ravel(np.asarray(weight, dtype=np.float64))
    largest = np.repeat(scales(weight, block_size), block_size)[: len(flat)]
    ratio = np.divide(flat, largest, out=np.zeros_like(flat), where=largest > 0)
    return np.abs(ratio[:, None] - CODEBOOK).argmin(axis=1)


def pack(values: Any) -> np.ndarray:
    """Two codes a byte, the first in the high nibble; an odd last one is paired with code 7 (0)."""
    flat = np.asarray(values, dtype=np.uint8)
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(7))
    return flat[0::2] << 4 | flat[1::2]


def unpack(packed: Any, count: int) -> np.ndarray:
    """The first ``count`` codes."""
    flat = np.ravel(np.asarray(packed, dtype=np.uint8))
    return np.stack([flat >> 4, flat & 15], axis=1).ravel()[:count]


def dequantize(
    packed: Any,
    block_scales: Any,
    shape: tuple[int, int],
    block_size: int,
    codebook: Any = CODEBOOK,
) -> np.ndarray:
    """The dense weight."""
    count = shape[0] * shape[1]
    values = np.asarray(codebook, dtype=np.float64)[unpack(packed, count)]
    factors = np.repeat(np.asarray(block_scales, dtype=np.float64), block_size)[:count]
    return (values * factors).reshape(shape)


def product(x: Any, y: Any) -> np.ndarray:
    return np.asarray(x, dtype=np.float64) @ np.asarray(y, dtype=np.float64)


def matmul(
    x: Any, weight: Any, bias: Any = None, update_x: Any = None, update_w: Any = None
) -> np.ndarray:
    """``x @ W^T + bias + update_x @ update_w``."""
    result = input_grad(x, np.asarray(weight).T, update_x, update_w)
    return result if bias is None else result + np.asarray(bias, dtype=np.float64)


def input_grad(grad: Any, weight: Any, update_x: Any = None, update_w: Any = None) -> np.ndarray:
    """``grad @ W + update_x @ update_w``."""
    result = product(grad, weight)
    return result if update_x is None else result + product(update_x, update_w)
