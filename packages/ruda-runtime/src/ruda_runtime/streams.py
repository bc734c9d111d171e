"""Streams and events.

Dispatch is synchronous by default: the work of a call is done when the call returns. With
``RUDA_ASYNC=1`` a stream is a queue with a worker thread, on a GPU a stream of the driver, and a
call returns when its work is queued. The rules of use are the same. The setting is read at the
import and settled by the first submission.

An error in queued work is raised once, with the kernel's name, by what next waits for that work on
the host: ``synchronize()`` of the stream, of an event behind it or of the device, or reading a
tensor.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ruda_runtime import _native
from ruda_runtime.devices import Device, device_of
from ruda_runtime.errors import RudaRuntimeError, RudaTypeError, RudaValueError


class Stream:
    """An ordered queue of work.

    At most ``RUDA_MAX_STREAMS`` (32) streams besides the default one exist at a time; a stream that
    is closed or no longer referenced gives its place back.

    Args:
        priority: only 0 exists.

    Raises:
        RudaValueError: another priority.
        RudaRuntimeError: the pool has no stream left.
    """

    def __init__(self, priority: int = 0) -> None:
        if priority != 0:
            raise RudaValueError(f"[Stream] priority: got {priority!r}, wanted 0, the only one")
        self._device = device_of()
        self._id = _native.open_stream()
        self._finalizer = weakref.finalize(self, _native.close_stream, self._id)
        self._finalizer.atexit = False
        with _lock:
            _streams[self._id] = self

    @property
    def id(self) -> int:
        """0 for the default stream, else a number of the pool."""
        return self._id

    @property
    def device(self) -> Device:
        """The device the stream belongs to."""
        return self._device

    @property
    def priority(self) -> int:
        """Always 0."""
        return 0

    @property
    def native_handle(self) -> int:
        """The address that ``ruda_api.launch`` takes as its stream."""
        self._check_open("native_handle")
        return _native.stream_address(self._id)

    @property
    def cuda_stream(self) -> int:
        """The driver's CUstream, for other libraries of this process; on a GPU only."""
        self._check_open("cuda_stream")
        if self._device.target != "cuda":
            raise RudaRuntimeError("[cuda_stream] a stream of the host target has no CUDA stream")
        return _native.driver_stream(self._id)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which cuda.core takes a stream: version and handle."""
        return (0, self.cuda_stream)

    def query(self) -> bool:
        """Whether all work of the stream is done; never waits."""
        self._check_open("query")
        return _native.query_stream(self._id)

    def synchronize(self) -> None:
        """Wait until all work of the stream is done; raises the error of work that failed."""
        self._check_open("synchronize")
        _native.synchronize(self._id)

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event`` (or a new one) at the end of the work submitted so far; returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work of this stream begins after ``event``; does not block the caller.

        Raises:
            RudaRuntimeError: the event was never recorded, or was closed.
        """
        self._check_open("wait_event")
        if not isinstance(event, Event):
            raise RudaTypeError(f"[wait_event] event: got {type(event).__name__}, wanted an Event")
        event._check_recorded("wait_event")
        event._native.wait(self._id)

    def wait_stream(self, other: Stream) -> None:
        """Later work of this stream begins after all work submitted to ``other`` so far."""
        self._check_open("wait_stream")
        if not isinstance(other, Stream):
            raise RudaTypeError(f"[wait_stream] other: got {type(other).__name__}, wanted a Stream")
        other._check_open("wait_stream")
        _native.wait_stream(self._id, other._id)

    def close(self) -> None:
        """Give the stream's place in the pool back. Closing twice is allowed.

        Queued work is still done; ``ruda_runtime.synchronize()`` waits for it and raises its
        errors.

        Raises:
            RudaRuntimeError: it is the default stream, or the calling thread's current stream.
        """
        if self._id == 0:
            raise RudaRuntimeError("[Stream] close: the default stream cannot be closed")
        if self.closed:
            return
        if _native.current_stream() == self._id:
            raise RudaRuntimeError(
                f"[Stream] close: stream {self._id} is the current stream of this thread; leave "
                "its `with stream(...)` first"
            )
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._finalizer.alive

    def _check_open(self, operation: str) -> None:
        if self.closed:
            raise RudaRuntimeError(f"[{operation}] stream {self._id} is closed: make a new one")

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Stream(id={self._id}, device='{self._device}'{state})"


class Event:
    """A point in the work of a stream.

    Args:
        enable_timing: whether ``elapsed_time`` may use this event.
    """

    def __init__(self, enable_timing: bool = False) -> None:
        self._enable_timing = bool(enable_timing)
        self._native = _native.Event(self._enable_timing)
        self._stream_id: int | None = None
        self._closed = False

    @property
    def enable_timing(self) -> bool:
        """Whether the event notes the time it completes."""
        return self._enable_timing

    @property
    def closed(self) -> bool:
        """Whether the event was closed and not recorded since."""
        return self._closed

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work submitted to ``stream`` (default: the current one) so far.

        Recording again moves the event; recording a closed event makes it usable again.
        """
        target = current_stream() if stream is None else stream
        if not isinstance(target, Stream):
            raise RudaTypeError(f"[record] stream: got {type(target).__name__}, wanted a Stream")
        target._check_open("record")
        self._native.record(target.id)
        self._stream_id = target.id
        self._closed = False

    def query(self) -> bool:
        """Whether the work before the event is done; never waits. True before the first record."""
        self._check_open("query")
        return self._native.query()

    def synchronize(self) -> None:
        """Wait until the work before the event is done; raises the error of work that failed.

        Returns at once before the first record.
        """
        self._check_open("synchronize")
        self._native.synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """The same as ``stream.wait_event(self)``; default: the current stream."""
        (current_stream() if stream is None else stream).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``.

        Raises:
            RudaRuntimeError: one of the two was made without ``enable_timing=True``, was never
                recorded, is closed, or is not done.
        """
        if not isinstance(end, Event):
            raise RudaTypeError(f"[elapsed_time] end: got {type(end).__name__}, wanted an Event")
        for name, event in (("start", self), ("end", end)):
            if not event._enable_timing:
                raise RudaRuntimeError(
                    f"[elapsed_time] {name}: got an event without timing, wanted one made with "
                    "enable_timing=True"
                )
            event._check_recorded("elapsed_time")
        return self._native.elapsed(end._native)

    def close(self) -> None:
        """Release the event; only ``record`` may follow. Closing twice is allowed."""
        self._closed = True
        self._stream_id = None
        self._native = _native.Event(self._enable_timing)

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise RudaRuntimeError(
                f"[{operation}] the event is closed: record it again before using it"
            )

    def _check_recorded(self, operation: str) -> None:
        self._check_open(operation)
        if self._stream_id is None:
            raise RudaRuntimeError(
                f"[{operation}] the event was never recorded: call record() first"
            )

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._stream_id is None:
            state = "not recorded"
        else:
            state = f"recorded on stream {self._stream_id}"
        return f"Event({state}, enable_timing={self._enable_timing})"


class _DefaultStream(Stream):
    """Stream 0: exists without the pool and is never closed."""

    def __init__(self) -> None:
        self._device = device_of()
        self._id = 0

    @property
    def closed(self) -> bool:
        return False


_lock = threading.Lock()
_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_default: Stream | None = None


def default_stream() -> Stream:
    """The stream of id 0."""
    global _default
    if _default is None:
        made = _DefaultStream()
        with _lock:
            if _default is None:
                _default = made
    return _default


def current_stream() -> Stream:
    """The calling thread's current stream: the default one outside of ``with stream(...)``."""
    number = _native.current_stream()
    if number == 0:
        return default_stream()
    with _lock:
        return _streams[number]


@contextmanager
def stream(target: Stream | None) -> Iterator[Stream]:
    """Make ``target`` the current stream of the calling thread inside the ``with`` block.

    ``None`` changes nothing.
    """
    before = current_stream()
    if target is None:
        yield before
        return
    if not isinstance(target, Stream):
        raise RudaTypeError(f"[stream] target: got {type(target).__name__}, wanted a Stream")
    target._check_open("stream")
    _native.set_current_stream(target.id)
    try:
        yield target
    finally:
        # The outer stream may have been closed meanwhile.
        _native.set_current_stream(0 if before.closed else before.id)
