"""Choosing among implementations of one operation by measuring them.

A kernel family has a reference, which is always right, and candidates, which may be faster on this
machine for these shapes. `Tuner.execute` runs the best known one; the first call of a shape tries
the candidates on the caller's own operands::

    from ruda_runtime import tune

    def run(plan):  # "reference" or a candidate's name
        return my_operation(x, plan=plan)

    y = tune.tuner().execute("my.operation/1", {"shape": x.shape}, "simple", ["tiled"], run)

`Policy` has the rules and RUDA_AUTOTUNE the mode: ``explore`` (the default), ``cache_only`` or
``disabled``. A choice can change the rounding of a result, never what it is: every candidate's
numbers are compared with the reference's first. docs/tuning.md describes it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ruda_runtime.tune.controller import Tuner
from ruda_runtime.tune.errors import TuningError, WrongNumbersError
from ruda_runtime.tune.fingerprint import fingerprint
from ruda_runtime.tune.measure import Measurement
from ruda_runtime.tune.policy import MODES, Policy
from ruda_runtime.tune.records import Record
from ruda_runtime.tune.timing import TIMERS, EventTimer, HostTimer, Timer

__all__ = [
    # choosing
    "Tuner", "tuner", "using", "MODES", "Policy",
    # what was found
    "Record", "Measurement", "fingerprint",
    # measuring
    "Timer", "HostTimer", "EventTimer", "TIMERS",
    # errors
    "TuningError", "WrongNumbersError",
]  # fmt: skip

_lock = threading.Lock()
_tuner: Tuner | None = None


def tuner() -> Tuner:
    """The process's tuner, which the packages' operations use. Made, and RUDA_AUTOTUNE read, once.

    Raises:
        RudaValueError: RUDA_AUTOTUNE is none of the three modes.
    """
    global _tuner
    found = _tuner
    if found is not None:
        return found
    made = Tuner()
    with _lock:
        if _tuner is None:
            _tuner = made
        return _tuner


@contextmanager
def using(other: Tuner) -> Iterator[Tuner]:
    """Make ``other`` the process's tuner, for all threads, inside the ``with`` block."""
    global _tuner
    with _lock:
        before, _tuner = _tuner, other
    try:
        yield other
    finally:
        with _lock:
            _tuner = before
