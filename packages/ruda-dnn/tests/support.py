"""Tensors of a dtype, and the criteria of a right result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

import ruda_runtime
from ruda_runtime import Tensor, conformance
from ruda_runtime.conformance import rounded

Array = NDArray[np.float64]

__all__ = ["DTYPES", "Array", "bits_of", "check", "offset", "rounded", "same_for_any_thread_count",
           "strided", "threads", "to_tensor", "values_of"]  # fmt: skip

DTYPES = ["float32", "float16", "bfloat16"]


def to_tensor(values: Array, dtype: str) -> Tensor:
    with np.errstate(all="ignore"):
        return Tensor.from_numpy(
            np.asarray(values, np.float64).astype(conformance.numpy_dtype(dtype)), copy=True
        )


def strided(values: Array, dtype: str) -> Tensor:
    """The same elements as every second column of a wider tensor whose other columns are NaN."""
    values = np.asarray(values, np.float64)
    wide = np.full((*values.shape[:-1], 2 * values.shape[-1]), np.nan)
    wide[..., ::2] = values
    tensor = to_tensor(wide, dtype).slice(values.ndim - 1, 0, None, 2)
    assert values.size < 2 or not tensor.is_contiguous()
    return tensor


def offset(values: Array, dtype: str) -> Tensor:
    """The same elements one element after the start of a block: no vector alignment."""
    flat = np.concatenate([[np.nan], np.asarray(values, np.float64).reshape(-1)])
    return to_tensor(flat, dtype).slice(0, 1, None).view(*values.shape)


def values_of(tensor: Tensor) -> Array:
    return np.asarray(tensor.numpy()).astype(np.float64)


def bits_of(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.numpy()).tobytes()


def check(actual: Tensor, reference: Array, dtype: str, *, long_reduction: bool = False) -> None:
    """The criteria of ``ruda_runtime.conformance``; values that overflow the dtype are infinite."""
    assert actual.dtype_name == dtype
    stored = rounded(reference, dtype)
    wanted = np.where(np.isinf(stored), stored, reference)
    conformance.check(actual.numpy(), wanted, dtype, long_reduction=long_reduction)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = ruda_runtime.get_num_threads()
    ruda_runtime.set_num_threads(count)
    try:
        yield
    finally:
        ruda_runtime.set_num_threads(before)


def same_for_any_thread_count(run: Callable[[], list[Tensor]]) -> None:
    """Bit-equal results on one thread, on several, and a second time."""
    results = []
    for count in (1, 2, 5):
        with threads(count):
            results.append([bits_of(tensor) for tensor in run()])
    results.append([bits_of(tensor) for tensor in run()])
    assert all(result == results[0] for result in results)
