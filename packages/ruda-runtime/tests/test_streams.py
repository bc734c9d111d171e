"""Streams and events: the rules of use."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

import ruda_runtime as rr
from ruda_runtime import _native


def test_the_default_stream() -> None:
    default = rr.default_stream()
    assert default.id == 0 and default is rr.default_stream() and rr.current_stream() is default
    assert default.query() and default.priority == 0 and not default.closed
    default.synchronize()
    rr.synchronize()
    with pytest.raises(rr.RudaRuntimeError, match="cannot be closed"):
        default.close()


def test_the_current_stream_follows_the_block_and_the_thread() -> None:
    outer, inner = rr.Stream(), rr.Stream()
    assert len({0, outer.id, inner.id}) == 3
    with rr.stream(outer) as entered:
        assert entered is outer and rr.current_stream() is outer
        with rr.stream(inner):
            assert rr.current_stream() is inner
            seen: list[rr.Stream] = []
            thread = threading.Thread(target=lambda: seen.append(rr.current_stream()))
            thread.start()
            thread.join()
            assert seen == [rr.default_stream()]
        with rr.stream(None) as unchanged:
            assert unchanged is outer
        with pytest.raises(ZeroDivisionError), rr.stream(inner):
            raise ZeroDivisionError
        assert rr.current_stream() is outer
    assert rr.current_stream().id == 0


def test_tensors_remember_their_queue() -> None:
    stream = rr.Stream()
    a = rr.empty(3)
    with rr.stream(stream):
        b, c = rr.empty(3), rr.empty(4, "int64")
    assert b.same_execution_queue(c) and not a.same_execution_queue(b)
    assert a.same_execution_queue(rr.empty(1))


def test_only_priority_0() -> None:
    assert rr.Stream(priority=0).priority == 0
    for wrong in (1, -1):
        with pytest.raises(rr.RudaValueError, match=r"\[Stream\] priority: got .*wanted 0"):
            rr.Stream(priority=wrong)


def test_the_pool_is_bounded_and_reused() -> None:
    gc.collect()
    before = _native.open_streams()
    held = [rr.Stream() for _ in range(_native.max_streams - before)]
    with pytest.raises(rr.RudaRuntimeError, match=r"all 32 streams .* reuse streams"):
        rr.Stream()
    freed = held[3].id
    held[3].close()
    held[3] = rr.Stream()
    assert held[3].id == freed
    freed = held.pop().id  # an unreferenced stream gives its place back as well
    gc.collect()
    held.append(rr.Stream())
    assert held[-1].id == freed
    del held
    gc.collect()
    assert _native.open_streams() == before


def test_a_closed_stream_is_refused() -> None:
    stream = rr.Stream()
    stream.close()
    stream.close()
    assert stream.closed and "closed" in repr(stream)
    event = rr.Event()
    event.record()
    for use in (
        stream.query,
        stream.synchronize,
        stream.record_event,
        lambda: stream.wait_event(event),
        lambda: stream.wait_stream(rr.default_stream()),
        lambda: rr.default_stream().wait_stream(stream),
        lambda: event.record(stream),
        lambda: stream.native_handle,
        lambda: rr.stream(stream).__enter__(),
    ):
        with pytest.raises(rr.RudaRuntimeError, match="is closed"):
            use()
    open_stream = rr.Stream()
    with rr.stream(open_stream):
        with pytest.raises(rr.RudaRuntimeError, match="current stream"):
            open_stream.close()
        nested = rr.Stream()
        with rr.stream(nested):
            open_stream.close()
        assert rr.current_stream().id == 0  # the outer one has gone meanwhile


def test_events_order_and_measure() -> None:
    stream = rr.Stream()
    start, end = rr.Event(enable_timing=True), rr.Event(enable_timing=True)
    assert start.enable_timing and start.query()
    start.synchronize()
    start.record(stream)
    time.sleep(0.02)
    assert stream.record_event(end) is end
    assert 20 <= start.elapsed_time(end) < 2000
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    stream.wait_event(end)
    end.wait()
    stream.wait_stream(rr.default_stream())
    first = start.elapsed_time(end)
    time.sleep(0.005)
    end.record()  # recording again moves it
    assert start.elapsed_time(end) > first + 4


def test_event_errors() -> None:
    timed, plain = rr.Event(enable_timing=True), rr.Event()
    with pytest.raises(rr.RudaRuntimeError, match="never recorded"):
        rr.default_stream().wait_event(plain)
    timed.record()
    plain.record()
    with pytest.raises(
        rr.RudaRuntimeError, match=r"end: got an event without timing.*enable_timing"
    ):
        timed.elapsed_time(plain)
    with pytest.raises(rr.RudaRuntimeError, match="start: got an event without timing"):
        plain.elapsed_time(timed)
    with pytest.raises(rr.RudaRuntimeError, match="never recorded"):
        timed.elapsed_time(rr.Event(enable_timing=True))
    for use in (
        lambda: rr.default_stream().wait_event("event"),
        lambda: rr.default_stream().wait_stream(3),
        lambda: timed.record("stream"),
        lambda: timed.elapsed_time(1.0),
        lambda: rr.stream("stream").__enter__(),
    ):
        with pytest.raises(rr.RudaTypeError, match=r"wanted an? (Event|Stream)"):
            use()


def test_a_closed_event_can_be_recorded_again() -> None:
    event, other = rr.Event(enable_timing=True), rr.Event(enable_timing=True)
    event.record()
    other.record()
    event.close()
    event.close()
    assert event.closed
    for use in (
        event.query,
        event.synchronize,
        lambda: rr.default_stream().wait_event(event),
        lambda: event.elapsed_time(other),
    ):
        with pytest.raises(rr.RudaRuntimeError, match="the event is closed: record it again"):
            use()
    event.record()
    assert not event.closed and event.query() and other.elapsed_time(event) >= 0


def test_the_pool_size_is_a_setting(python_output: Callable[..., str]) -> None:
    code = """
import ruda_runtime as rr
held = [rr.Stream(), rr.Stream()]
try:
    rr.Stream()
except RuntimeError as error:
    print(error)
"""
    text = python_output(code, RUDA_MAX_STREAMS="2", RUDA_TARGET="host")
    assert text.startswith("[Stream] all 2 streams of the pool are in use")
