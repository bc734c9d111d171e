"""The pool behind every tensor, and what it holds.

Freed memory stays with the pool for the next request. ``RUDA_MEMORY_LIMIT`` bounds what the pool
may take from the system, in bytes. ``RUDA_POISON=1`` fills memory with 0xff (NaN in every floating
dtype) when it is handed out and when it is given back, so that a result that depends on
uninitialised or freed memory shows. Both are read when the package is imported.
"""

from __future__ import annotations

from ruda_runtime import _native


def memory_stats() -> dict[str, int]:
    """What the pool holds, in bytes and numbers of blocks.

    Keys: ``allocated`` (bytes handed out now, as asked for), ``reserved`` (bytes held from the
    system now), ``peak_allocated`` and ``peak_reserved`` (maxima since the start or the last
    ``reset_peak_memory_stats``), ``count`` (live blocks), ``allocations`` and
    ``system_allocations`` (since the process started), ``out_of_memory`` (refused requests).
    """
    return _native.memory_stats()


def reset_peak_memory_stats() -> None:
    """Set ``peak_allocated`` and ``peak_reserved`` to what is held now."""
    _native.reset_peak_memory_stats()


def empty_cache() -> None:
    """Give memory that no tensor uses back to the system."""
    _native.empty_cache()
