"""Streams and events of the host target, however it dispatches."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import ruda_torch


def test_types_are_torch_types() -> None:
    stream = ruda_torch.Stream()
    event = ruda_torch.Event()
    assert isinstance(stream, torch.Stream)
    assert isinstance(event, torch.Event)
    assert torch.ruda.Stream is ruda_torch.Stream
    assert torch.ruda.Event is ruda_torch.Event
    assert stream.device == torch.device("ruda", 0)
    assert stream.priority == 0


def test_current_stream_is_default_and_follows_contexts() -> None:
    assert ruda_torch.current_stream() == ruda_torch.default_stream()
    assert ruda_torch.default_stream().stream_id == 0
    first, second = ruda_torch.Stream(), ruda_torch.Stream()
    assert first != second
    assert first != ruda_torch.default_stream()
    with ruda_torch.stream(first) as entered:
        assert entered is first
        assert ruda_torch.current_stream() == first
        assert torch.accelerator.current_stream() == first
        with second:
            assert ruda_torch.current_stream() == second
        assert ruda_torch.current_stream() == first
        with ruda_torch.stream(None):
            assert ruda_torch.current_stream() == first
    assert ruda_torch.current_stream() == ruda_torch.default_stream()
    ruda_torch.set_stream(second)
    assert ruda_torch.current_stream() == second
    ruda_torch.set_stream(ruda_torch.default_stream())
    assert isinstance(ruda_torch.current_stream(), ruda_torch.Stream)


def test_the_current_stream_is_the_threads_own() -> None:
    seen = []
    with ruda_torch.stream(ruda_torch.Stream()):
        thread = threading.Thread(target=lambda: seen.append(ruda_torch.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


def test_streams_are_bounded_and_come_back() -> None:
    streams = []
    with pytest.raises(RuntimeError, match="reuse streams"):
        for _ in range(33):
            streams.append(ruda_torch.Stream())
    assert len({stream.stream_id for stream in streams}) == len(streams)
    streams.clear()
    assert ruda_torch.Stream().stream_id > 0


def test_other_priorities_and_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="priority: got -1, wanted 0"):
        ruda_torch.Stream(priority=-1)
    with pytest.raises(ValueError, match="got 1, wanted 0"):
        ruda_torch.Stream(device="ruda:1")
    with pytest.raises(ValueError, match="wanted 'ruda'"):
        ruda_torch.Stream(device="cpu")


def test_work_on_a_stream_is_done_when_its_call_returns() -> None:
    stream = ruda_torch.Stream()
    with ruda_torch.stream(stream):
        there = torch.arange(1000.0).to("ruda", non_blocking=True)
    assert stream.query()
    event = stream.record_event()
    ruda_torch.current_stream().wait_event(event)
    ruda_torch.current_stream().wait_stream(stream)
    stream.synchronize()
    ruda_torch.synchronize()
    ruda_torch.synchronize("ruda:0")
    assert event.query()
    assert there[999].item() == 999.0


def test_events_measure_time() -> None:
    begin, end = ruda_torch.Event(enable_timing=True), ruda_torch.Event(enable_timing=True)
    begin.record()
    time.sleep(0.02)
    end.record(ruda_torch.Stream())
    end.synchronize()
    assert 20 <= begin.elapsed_time(end) < 2000
    assert end.elapsed_time(begin) < 0


def test_elapsed_time_needs_timing_and_records() -> None:
    timed, untimed = ruda_torch.Event(enable_timing=True), ruda_torch.Event()
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(ruda_torch.Event(enable_timing=True))
    timed.record()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(untimed)


def test_a_closed_event_is_usable_after_it_is_recorded_again() -> None:
    event = ruda_torch.Event(enable_timing=True)
    assert event.query()  # nothing recorded, nothing to wait for
    event.record()
    event.close()
    event.close()
    for use in (event.query, event.synchronize, event.wait, lambda: event.elapsed_time(event)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    event.record()
    event.synchronize()
    assert event.query()
    assert event.elapsed_time(event) == 0


def test_generic_torch_streams_and_events() -> None:
    stream = torch.Stream("ruda")
    event = torch.Event("ruda", enable_timing=True)
    event.record(stream)
    event.wait(ruda_torch.current_stream())
    event.synchronize()
    assert event.query()
    with stream:
        assert torch.accelerator.current_stream() == stream
    with pytest.raises(RuntimeError, match="device type"):
        event.record(torch.Stream(stream_id=0, device_index=0, device_type=1))


def test_gradients_of_a_side_stream_are_usable_at_once() -> None:
    weight = torch.ones(4).to("ruda").requires_grad_()
    stream = ruda_torch.Stream()
    with ruda_torch.stream(stream):
        loss = (weight * 3).sum()
        loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 4
