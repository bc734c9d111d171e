"""The pool behind every tensor, and what it holds.

On a GPU the pool is the driver's stream-ordered one: memory that is freed serves later work of the
same stream at once, and other streams when the work before is done. Freed memory stays with the
pool for the next request. ``RUDA_MEMORY_LIMIT`` bounds what the pool may take from the system, in
bytes. ``RUDA_POISON=1`` fills memory with 0xff (NaN in every floating dtype) when it is handed out
and when it is given back, so that a result that depends on uninitialised or freed memory shows.
Both are read when the package is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ruda_runtime import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray


def memory_stats() -> dict[str, int]:
    """What the pool holds, in bytes and numbers of blocks.

    Keys: ``allocated`` (bytes handed out now, as asked for), ``reserved`` (bytes held from the
    system now), ``peak_allocated`` and ``peak_reserved`` (maxima since the start or the last
    ``reset_peak_memory_stats``), ``count`` (live blocks), ``allocations`` and
    ``system_allocations`` (since the process started; on a GPU every allocation is a request to the
    driver's pool), ``out_of_memory`` (refused requests).
    """
    return _native.memory_stats()


def reset_peak_memory_stats() -> None:
    """Set ``peak_allocated`` and ``peak_reserved`` to what is held now."""
    _native.reset_peak_memory_stats()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    _native.empty_cache()


def pinned_empty(shape: int | Sequence[int], dtype: Any = "float32") -> NDArray[Any]:
    """A NumPy array with undefined elements in page-locked memory, which a GPU copies by itself.

    With ``RUDA_ASYNC=1`` ``Tensor.from_numpy``, ``Tensor.copy_from`` and ``Tensor.copy_to`` return
    before such an array is copied: wait for the current stream before writing or reading it. On the
    host target it is an ordinary array.

    Args:
        shape: sizes, each at least 0.
        dtype: anything NumPy takes as a dtype, or ``"bfloat16"``.

    Raises:
        RudaValueError: a size is negative.
        RudaTypeError: a dtype that tensors do not have.
        OutOfMemoryError: the system cannot lock so much memory.
    """
    return _native.pinned_array(shape, dtype)
