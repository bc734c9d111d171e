"""What measures one run: a timer for each target."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ruda_runtime.streams import Event, current_stream


class Timer(Protocol):
    """Measures calls on the calling thread's current stream."""

    def measure(self, run: Callable[[], Any]) -> int:
        """Run once and return the nanoseconds from the call until its work is done.

        Work submitted before must not count. An exception of ``run``, or of its queued work, passes
        through.
        """
        ...


class HostTimer:
    """The host's monotonic clock around the call and the wait for its stream."""

    def measure(self, run: Callable[[], Any]) -> int:
        stream = current_stream()
        stream.synchronize()
        begin = time.perf_counter_ns()
        run()
        stream.synchronize()
        return time.perf_counter_ns() - begin


class EventTimer:
    """Two events of the runtime around the call, on a stream that is idle when it begins.

    The device's own clock: the wait of the host does not count, everything that the call does
    between its first and its last piece of work does.
    """

    def __init__(self) -> None:
        self._begin = Event(enable_timing=True)
        self._end = Event(enable_timing=True)

    def measure(self, run: Callable[[], Any]) -> int:
        stream = current_stream()
        stream.synchronize()
        self._begin.record(stream)
        run()
        self._end.record(stream)
        stream.synchronize()
        return round(self._begin.elapsed_time(self._end) * 1e6)


TIMERS: dict[str, Callable[[], Timer]] = {"host": HostTimer, "cuda": EventTimer}
"""What a target's runs are measured with."""
