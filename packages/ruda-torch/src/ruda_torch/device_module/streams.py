"""Streams and events.

Synchronous dispatch, the default: work has finished when the call that submits it returns. With
`RUDA_TORCH_ASYNC=1` RUDA's own kernels (`torch.ops.ruda.*` and the matrix products) are queued on
the current stream, and a worker runs them in order. Every operator that ATen's CPU kernels compute,
a copy and `item()` wait for the current stream first, so that `non_blocking` copies are complete
either way.
An error in queued work is raised once, by what next waits for that stream.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch

from .. import _native
from ._utils import OptionalDevice, _get_device_index

_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1.value)


class Stream(torch.Stream):
    """An in-order queue of work, from a bounded pool (RUDA_MAX_STREAMS, 32 by default).

    Args:
        device: the device, `ruda:0`.
        priority: 0; there is no other.

    Raises:
        RuntimeError: every stream of the pool is in use. A stream goes back to the pool when its
            object is dropped.
        ValueError: another device or priority.
    """

    def __new__(cls, device: OptionalDevice = None, priority: int = 0, **ids: int) -> Stream:
        if ids:  # a wrapper of a stream that exists
            return super().__new__(cls, **ids)
        _get_device_index(device, optional=True)
        number = _native.acquire_stream(priority)
        self = super().__new__(cls, stream_id=number, device_index=0, device_type=_TYPE)
        weakref.finalize(self, _native.release_stream, number).atexit = False
        return self

    @property
    def priority(self) -> int:
        return 0

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record `event` (a new one by default) on this stream and return it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<ruda_torch.Stream device={self.device} id={self.stream_id}>"

    __hash__ = torch.Stream.__hash__


class Event(torch.Event):
    """A point in the work of a stream.

    Args:
        enable_timing: whether `elapsed_time` may be asked of it.

    `close()` releases the event; recording it again makes it usable again. Every other use of a
    closed event raises RuntimeError.
    """

    _closed = False
    _timing = False

    def __new__(cls, enable_timing: bool = False) -> Event:
        self = super().__new__(cls, device="ruda", enable_timing=enable_timing)
        self._timing = enable_timing
        return self

    def close(self) -> None:
        """Release the event. Closing twice is allowed."""
        self._closed = True

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise RuntimeError(f"[{operation}] the event is closed; record it again to use it")

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the end of the work on `stream` (the current one by default)."""
        super().record(current_stream() if stream is None else stream)
        self._closed = False

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Make later work on `stream` (the current one by default) wait for the event."""
        self._check_open("wait")
        super().wait(current_stream() if stream is None else stream)

    def query(self) -> bool:
        """Whether the work before the event is done. Never waits."""
        self._check_open("query")
        return super().query()

    def synchronize(self) -> None:
        """Wait on the host for the event."""
        self._check_open("synchronize")
        super().synchronize()

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to `end_event`; both were recorded with timing enabled."""
        self._check_open("elapsed_time")
        if not isinstance(end_event, Event):
            return super().elapsed_time(end_event)
        # torch's own method takes no subclass of torch.Event as the second event.
        end_event._check_open("elapsed_time")
        if not (self._timing and end_event._timing):
            raise ValueError("[elapsed_time] both events must be made with enable_timing=True")
        if self.event_id == 0 or end_event.event_id == 0:
            raise ValueError("[elapsed_time] both events must be recorded first")
        return _native.elapsed_time(self.event_id, end_event.event_id)


def _wrap(stream: torch.Stream) -> Stream:
    if isinstance(stream, Stream):
        return stream
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def current_stream(device: OptionalDevice = None) -> Stream:
    """The calling thread's current stream."""
    return _wrap(torch.accelerator.current_stream(_get_device_index(device, optional=True)))


def default_stream(device: OptionalDevice = None) -> Stream:
    """The stream with id 0, which always exists."""
    index = _get_device_index(device, optional=True)
    return Stream(stream_id=0, device_index=index, device_type=_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` the calling thread's current stream; None leaves it."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream the current one; None leaves it."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: Any = None

    def __enter__(self) -> torch.Stream | None:
        self._before = current_stream()
        set_stream(self.stream)
        return self.stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        set_stream(self._before)


def stream(stream: torch.Stream | None) -> StreamContext:
    """`with ruda_torch.stream(s): ...` runs the block's work on `s`."""
    return StreamContext(stream)


def synchronize(device: OptionalDevice = None) -> None:
    """Wait on the host for all work on the device."""
    torch.accelerator.synchronize(_get_device_index(device, optional=True))


def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Say that `stream` uses `tensor`, so that its memory is not reused before that use ends."""
    tensor.record_stream(stream)
