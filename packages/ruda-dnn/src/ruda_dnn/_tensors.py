"""What the public functions share: arguments made contiguous, outputs allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ruda_runtime import Tensor, empty


def dense(tensor: Tensor, operation: str, name: str, error: type[Exception]) -> Tensor:
    """The tensor, or its contiguous copy; raises ``error`` for anything that is no Tensor."""
    if not isinstance(tensor, Tensor):
        raise error(
            f"[{operation}] {name}: got {type(tensor).__name__}, wanted a ruda_runtime.Tensor"
        )
    return tensor.contiguous()


def dense_or_none(
    tensor: Tensor | None, operation: str, name: str, error: type[Exception]
) -> Tensor | None:
    """``dense`` for an argument that may be absent."""
    return None if tensor is None else dense(tensor, operation, name, error)


def empty_like(tensor: Tensor, dtype: str | None = None) -> Tensor:
    """A contiguous tensor of the same shape."""
    return empty(tensor.shape, dtype or tensor.dtype_name)


def row_count(shape: Sequence[int]) -> int:
    """The product of all sizes but the last."""
    return math.prod(shape[:-1])
