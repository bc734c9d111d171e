"""Test equipment: the CUDA driver double.

The double is a shared library with the SONAME of the CUDA driver (``libcuda.so.1``) that implements
the driver's calls over host memory. Loaded before anything else looks for the driver, it makes the
whole ``cuda`` path run on a machine without a GPU: contexts, streams, events, memory, modules,
launches, graphs. A launched Triton kernel is run by Triton's interpreter in a server process that
shares the double's device memory.

It covers everything except code generation: what the compiler makes of a kernel is loaded and
checked for its format, its architecture and its number of parameters, and never executed. A kernel
that is right here can still be compiled wrongly, be slow or run out of registers; only a GPU shows
that. It is never chosen by itself, and ``Device.name`` says what it is.

What a real driver would let pass is found: use after free, access outside live allocations,
argument counts, types and promised alignment, waits for events that were never recorded, limits of
grids and blocks, calls in a wrong context, leaks at exit. Such a call (or the next synchronisation
of its stream) gives a CUDA error, and ``last_report()`` says in words what is wrong. Fresh and
freed memory holds NaN, programs of a grid run in random order, streams can be delayed; all
of it comes from a seed.
"""

from __future__ import annotations

from ruda_runtime.testing.double import (
    clear_reports,
    counters,
    describe,
    image_digest,
    last_report,
    load_driver_double,
    reports,
    use_driver_double,
    wait,
)

__all__ = [
    "clear_reports",
    "counters",
    "describe",
    "image_digest",
    "last_report",
    "load_driver_double",
    "reports",
    "use_driver_double",
    "wait",
]
