"""The threads of host kernels.

There is one pool. It starts with the first kernel that uses more than one thread, and its threads
sleep when idle. Results do not depend on the number of threads. The default is the number of CPUs
the process may use, or ``RUDA_NUM_THREADS``, read when the package is imported.
"""

from __future__ import annotations

import operator

from ruda_runtime import _native
from ruda_runtime.errors import RudaValueError


def get_num_threads() -> int:
    """Threads that a host kernel uses at most, the calling one included."""
    return _native.num_threads()


def set_num_threads(count: int) -> None:
    """Set the number of threads; waits for a kernel that is running.

    Raises:
        RudaValueError: ``count`` is not from 1 to 1024.
        RudaRuntimeError: called from inside a kernel.
    """
    number = operator.index(count)
    if not 1 <= number <= 1024:
        raise RudaValueError(f"[set_num_threads] count: got {number}, wanted 1 to 1024")
    _native.set_num_threads(number)
