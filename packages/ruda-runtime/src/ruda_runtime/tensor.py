"""Tensors: memory, shape, strides and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ruda_runtime import _native
from ruda_runtime._native import Tensor
from ruda_runtime.devices import Device, device_of

__all__ = ["Tensor", "empty", "from_dlpack"]


def empty(
    shape: int | Sequence[int],
    dtype: Any = "float32",
    *,
    device: Device | str | None = None,
) -> Tensor:
    """A row-major tensor with undefined elements.

    Args:
        shape: sizes, at most 16 of them, each at least 0.
        dtype: anything NumPy takes as a dtype, or ``"bfloat16"``.
        device: where it lives; a process has one device, ``"host:0"`` or ``"cuda:0"``.

    Raises:
        RudaValueError: a size is negative, or there are too many of them.
        RudaTypeError: a dtype that tensors do not have.
        DeviceError: there is no such device.
        OutOfMemoryError: the pool cannot get the memory.
    """
    device_of(device)
    return _native.empty(shape, dtype)


def from_dlpack(
    source: Any, *, device: Device | str | None = None, copy: bool | None = None
) -> Tensor:
    """The same as ``Tensor.from_dlpack``."""
    return Tensor.from_dlpack(source, device=device, copy=copy)
