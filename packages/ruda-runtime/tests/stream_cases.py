"""What streams and events promise, as functions that run on every target in both ways of dispatch.

`python stream_cases.py PROBE` runs every case in this process, whose RUDA_TARGET and RUDA_ASYNC say
where and which way, and prints a JSON object: name of the case -> "" or what went wrong.
`test_dispatch.py` reads it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np

import ruda_runtime as rr
from ruda_runtime import _native

ASYNC = os.environ.get("RUDA_ASYNC") == "1"
ON_GPU = os.environ.get("RUDA_TARGET") == "cuda"
QUEUED_ERRORS = ASYNC and not ON_GPU  # checks run with the kernel, on a GPU before the launch
SLOW = 60  # milliseconds of a slow kernel


class Error(ctypes.Structure):
    """ruda_error of abi.h."""

    _fields_ = (("code", ctypes.c_int32), ("message", ctypes.c_char * 1020))


def load(path: str) -> ctypes.CDLL:
    probe = ctypes.CDLL(path)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.c_void_p(pointer(_native.api, b"ruda_runtime._native.api"))
    error = Error()
    assert probe.probe_attach(table, ctypes.byref(error)) == 0, error.message
    assert probe.probe_register_slow(ctypes.byref(error)) == 0, error.message
    probe.probe_slow.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p)
    probe.probe_slow_on_device.argtypes = (
        ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64, ctypes.c_double,
    )  # fmt: skip
    probe.probe_list.argtypes = (ctypes.c_void_p,) * 4
    probe.probe_longest_launch.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    probe.probe_longest_launch.restype = ctypes.c_double
    return probe


probe: ctypes.CDLL


def slow(x: rr.Tensor, addend: float = 1.0, milliseconds: int = SLOW) -> None:
    """x += addend on the current stream, after a while."""
    if ON_GPU:
        slow_on_gpu(x, addend, milliseconds)
        return
    error = Error()
    if probe.probe_slow(x._view_address(), milliseconds, addend, ctypes.byref(error)) != 0:
        raise RuntimeError(error.message.decode())


def slow_on_gpu(x: rr.Tensor, addend: float, milliseconds: int) -> None:
    if x.dtype_name != "float32":
        raise RuntimeError(f"[probe.slow] x: got dtype {x.dtype_name}, wanted float32")
    stream = rr.current_stream()
    arguments = (stream.cuda_stream, x.data_ptr, x.size, milliseconds, float(addend))
    assert probe.probe_slow_on_device(*arguments) == 0
    if not ASYNC:
        stream.synchronize()


def zeros(count: int = 4, dtype: str = "float32") -> rr.Tensor:
    result = rr.Tensor.from_numpy(np.zeros(count, dtype), copy=True)
    if ON_GPU:  # any stream may use it from now on, as on the host
        rr.current_stream().synchronize()
    return result


def milliseconds(body: Callable[[], object]) -> float:
    started = time.perf_counter()
    body()
    return (time.perf_counter() - started) * 1e3


def case_a_launch_returns_before_its_work() -> None:
    x = zeros()
    spent = milliseconds(lambda: slow(x))
    assert (spent < SLOW / 2) == ASYNC, spent
    assert rr.default_stream().query() == (not ASYNC)
    spent = milliseconds(rr.default_stream().synchronize)
    assert (spent > SLOW / 2) == ASYNC, spent
    assert rr.default_stream().query()
    assert x.numpy().tolist() == [1] * 4


def case_launches_behind_slow_work_take_microseconds() -> None:
    if not ASYNC or ON_GPU:
        return
    x = zeros()
    slow(x)
    error = Error()
    longest = min(
        probe.probe_longest_launch(x._view_address(), 20, ctypes.byref(error)) for _ in range(2)
    )
    assert 0 < longest < 10_000, longest  # the machine may be busy; bench/overhead.py measures it
    assert x.numpy()[0] == 41


def case_order_within_a_stream() -> None:
    x, total = zeros(), 0.0
    for i in range(200):
        slow(x, i, 1 if i % 50 == 0 else 0)
        total += i
    assert x.numpy().tolist() == [total] * 4


def case_arguments_are_copied_deeply() -> None:
    target, part = zeros(8), zeros(8)
    part.numpy()[:] = np.arange(8)
    error = Error()
    addresses = (target._view_address(), part._view_address())
    assert probe.probe_list(*addresses, None, ctypes.byref(error)) == 0
    assert target.numpy().tolist() == [3.0 * i + 2100 for i in range(8)]


def case_a_result_outside_device_memory_is_there_when_the_launch_returns() -> None:
    target, part, total = zeros(8), zeros(8), ctypes.c_double(-1)
    part.numpy()[:] = 1
    error = Error()
    addresses = (target._view_address(), part._view_address())
    assert probe.probe_list(*addresses, ctypes.byref(total), ctypes.byref(error)) == 0
    assert total.value == 8 * 2103


def case_reading_waits() -> None:
    reads: list[Callable[[rr.Tensor], float]] = [
        lambda t: float(t.numpy()[0]),
        lambda t: float(np.asarray(t)[0]),
        lambda t: float(np.from_dlpack(t, device="cpu" if ON_GPU else None)[0]),
        lambda t: float(t.copy().numpy()[0]),
        lambda t: float(t.slice(0, 0, 4, 2).contiguous().numpy()[0]),
        lambda t: float(repr(t).startswith("Tensor([1.,")),
        lambda t: float(rr.from_dlpack(t, copy=True).numpy()[0]),
    ]
    for read in reads:
        x = zeros()
        slow(x, milliseconds=10)
        assert read(x) == 1.0


def case_reading_waits_for_the_tensors_own_stream() -> None:
    side = rr.Stream()
    with rr.stream(side):
        x = zeros()
        slow(x)
    assert x.numpy()[0] == 1


def case_from_numpy_shares_memory_that_stays() -> None:
    array = np.zeros(4, np.float32)
    x = rr.Tensor.from_numpy(array, copy=False)
    slow(x)
    del x  # waits: NumPy gives the memory back when it likes
    gc.collect()
    assert array.tolist() == [1] * 4


def case_streams_run_beside_each_other() -> None:
    one, two = rr.Stream(), rr.Stream()
    x, y = zeros(), zeros()

    def both() -> None:
        with rr.stream(one):
            slow(x)
        with rr.stream(two):
            slow(y)
        rr.synchronize()

    spent = min(milliseconds(both) for _ in range(3))
    assert (spent < 1.7 * SLOW) == ASYNC, spent
    assert x.numpy()[0] == y.numpy()[0] == 3


def case_an_event_marks_a_point() -> None:
    side, x = rr.Stream(), zeros()
    event = rr.Event()
    assert event.query()
    event.synchronize()
    with rr.stream(side):
        slow(x)
        event.record()
        slow(x)
    assert event.query() == (not ASYNC)
    event.synchronize()
    assert event.query() and side.query() == (not ASYNC)
    side.synchronize()
    assert x.numpy()[0] == 2


def case_query_never_waits() -> None:
    side, x = rr.Stream(), zeros()
    with rr.stream(side):
        slow(x, milliseconds=200)
    event = side.record_event()
    assert milliseconds(lambda: (side.query(), event.query())) < 50
    side.synchronize()


def case_wait_event_orders_streams_without_the_host() -> None:
    one, two, x = rr.Stream(), rr.Stream(), zeros()
    with rr.stream(one):
        slow(x, 5)
    event = one.record_event()
    spent = milliseconds(lambda: two.wait_event(event))
    assert spent < SLOW / 2, spent
    with rr.stream(one):
        slow(x, 0)  # not waited for
    with rr.stream(two):
        slow(x, 1, 0)
    two.synchronize()
    assert x.numpy()[0] == 6
    one.synchronize()  # x must not be freed before


def case_wait_stream_orders_streams() -> None:
    one, two, x = rr.Stream(), rr.Stream(), zeros()
    for _ in range(5):
        with rr.stream(one):
            slow(x, 1, 5)
        two.wait_stream(one)
        with rr.stream(two):
            slow(x, 1, 5)
        one.wait_stream(two)
    one.synchronize()
    assert x.numpy()[0] == 10


def case_an_event_recorded_again_moves() -> None:
    one, two, x = rr.Stream(), rr.Stream(), zeros()
    event = rr.Event()
    event.record(two)
    event.close()
    with rr.stream(one):
        slow(x)
    event.record(one)
    assert event.query() == (not ASYNC)
    event.wait(two)
    event.record(two)  # the wait above keeps its point
    event.synchronize()
    assert x.numpy()[0] == 1


def case_events_time_the_work_between_them() -> None:
    begin, end, x = rr.Event(enable_timing=True), rr.Event(enable_timing=True), zeros()
    begin.record()
    slow(x)
    end.record()
    if ASYNC:
        try:
            begin.elapsed_time(end)
        except rr.RudaRuntimeError as error:
            assert "not done" in str(error)
        else:
            raise AssertionError("the end was not reached yet")
    end.synchronize()
    assert SLOW <= begin.elapsed_time(end) < 20 * SLOW
    assert end.elapsed_time(begin) == -begin.elapsed_time(end)


def failing(x: rr.Tensor, wait: Callable[[], object]) -> str:
    """The text of the error that work on `x` (of a wrong dtype) ends with, where it surfaces."""
    if not QUEUED_ERRORS:
        try:
            slow(x, milliseconds=0)
        except RuntimeError as error:
            return str(error)
        raise AssertionError("no error")
    slow(x, milliseconds=5)
    try:
        wait()
    except rr.RudaTypeError as error:
        wait()  # once
        rr.synchronize()
        return str(error)
    raise AssertionError("no error")


def case_errors_surface_once_where_the_host_waits() -> None:
    x = zeros(4, "float64")
    side, event = rr.Stream(), rr.Event()

    def by_event() -> None:
        event.record()
        event.synchronize()

    waits: list[Callable[[], object]] = [
        rr.default_stream().synchronize, rr.synchronize, by_event, x.numpy, x.copy,
    ]  # fmt: skip
    for wait in waits:
        text = failing(x, wait)
        assert "[probe.slow] x: got dtype float64, wanted float32" in text, text
        if QUEUED_ERRORS:
            assert text.startswith("[probe.slow] in the queued work of stream 0: "), text
    if QUEUED_ERRORS:
        with rr.stream(side):
            slow(x, milliseconds=0)
        time.sleep(0.05)
        rr.default_stream().synchronize()  # another stream's error
        assert side.query()  # asks, and raises nothing
        try:
            side.synchronize()
        except rr.RudaTypeError as error:
            assert f"stream {side.id}" in str(error)
        else:
            raise AssertionError("no error")


def case_work_behind_an_error_still_runs_and_errors_are_counted() -> None:
    if not QUEUED_ERRORS:
        return
    wrong, right = zeros(4, "float64"), zeros()
    for _ in range(3):
        slow(wrong, milliseconds=1)
    slow(right)
    try:
        right.numpy()
    except rr.RudaTypeError as error:
        assert "2 more of the work queued behind it failed" in str(error)
    else:
        raise AssertionError("no error")
    assert right.numpy()[0] == 1


def case_a_stream_closed_with_work_in_flight_finishes_it() -> None:
    side, x, wrong = rr.Stream(), zeros(), zeros(4, "float64")
    number = side.id
    with rr.stream(side):
        slow(x)
        if QUEUED_ERRORS:
            slow(wrong, milliseconds=0)
    event = side.record_event()
    side.close()
    fresh = rr.Stream()
    fresh.synchronize()  # has nothing of the former owner's
    event.wait(fresh)
    if ASYNC:
        assert fresh.id != number  # idle ones go first
    if QUEUED_ERRORS:
        try:
            rr.synchronize()
        except rr.RudaTypeError as error:
            assert "float64" in str(error)
        else:
            raise AssertionError("the closed stream's error is lost")
    rr.synchronize()
    assert x.numpy()[0] == 1


def case_freed_memory_is_not_handed_to_the_host_or_another_stream() -> None:
    side = rr.Stream()
    with rr.stream(side):
        x = rr.empty(50_000, "float32")
        address = x.data_ptr
        slow(x)
        del x
    other = rr.empty(50_000, "float32")
    if ASYNC:
        assert other.data_ptr != address
        with rr.stream(side):
            again = rr.empty(50_000, "float32")
            # Later work of the same stream; on a GPU the driver chooses.
            assert again.data_ptr == address or _native.poison or ON_GPU
            other = rr.empty(50_000, "float32")
            assert other.data_ptr != address
            del again
    side.synchronize()


def case_another_thread_does_not_get_a_blocks_pending_memory() -> None:
    x = rr.empty(70_000, "float32")
    address = x.data_ptr
    slow(x)
    del x
    seen: list[bool] = []

    def there() -> None:
        seen.append(rr.empty(70_000, "float32").data_ptr != address or rr.default_stream().query())

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    assert seen == [True]
    rr.synchronize()


def case_record_stream_keeps_memory_for_another_stream() -> None:
    side = rr.Stream()
    x = zeros(60_000)
    address = x.data_ptr
    side.wait_stream(rr.default_stream())
    with rr.stream(side):
        slow(x)
    _native.record_stream(address, side.id)
    del x
    y = rr.empty(60_000, "float32")
    if ASYNC:
        assert y.data_ptr != address
    side.synchronize()
    del y
    found = [rr.empty(60_000, "float32") for _ in range(3)]
    assert address in [each.data_ptr for each in found] or ON_GPU


def case_memory_statistics_count_what_the_program_holds() -> None:
    gc.collect()
    rr.synchronize()
    before = rr.memory_stats()
    x = rr.empty(1000, "float32")
    slow(x, milliseconds=5)
    assert rr.memory_stats()["allocated"] == before["allocated"] + 4000
    del x
    after = rr.memory_stats()
    assert (after["allocated"], after["count"]) == (before["allocated"], before["count"])
    rr.synchronize()


def case_host_code_of_many_threads_shares_a_stream() -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        for i in range(20):
            x = zeros(300 + seed)
            slow(x, seed, 0)
            slow(x, i, 0)
            got = x.numpy()
            if not (got == seed + i).all():
                wrong.append((seed, i, got))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong, wrong[:2]


def case_a_forked_child_cannot_use_the_gpu() -> None:
    x = zeros()
    slow(x)
    child = os.fork()
    if child == 0:
        uses: list[Callable[[], object]] = [
            x.numpy, lambda: rr.empty(3), rr.synchronize, rr.Stream, rr.Event().record,
        ]  # fmt: skip
        messages = []
        for use in uses:
            try:
                use()
            except rr.RudaRuntimeError as error:
                messages.append("forked after its parent had started the cuda target" in str(error))
        del x
        os._exit(0 if messages == [True] * len(uses) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert x.numpy()[0] == 1


def case_a_fork_waits_and_the_child_works() -> None:
    x = zeros()
    slow(x)
    child = os.fork()
    if child == 0:
        good = x.numpy()[0] == 1
        slow(x, 2, 1)
        good = good and x.numpy()[0] == 3
        side = rr.Stream()
        with rr.stream(side):
            slow(x, 2, 1)
        side.synchronize()
        os._exit(0 if good and x.numpy()[0] == 5 else 1)
    slow(x, 3, 1)
    assert x.numpy()[0] == 4
    assert os.waitpid(child, 0)[1] == 0


def case_exceptions_leave_the_stream_usable() -> None:
    side, x = rr.Stream(), zeros()
    try:
        with rr.stream(side):
            slow(x)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert rr.current_stream().id == 0
    side.synchronize()
    assert x.numpy()[0] == 1


CASES = {name[5:]: body for name, body in list(globals().items()) if name.startswith("case_")}
HOST_ONLY = {
    "arguments_are_copied_deeply",  # of host kernels
    "a_result_outside_device_memory_is_there_when_the_launch_returns",
    "from_numpy_shares_memory_that_stays",
    "another_thread_does_not_get_a_blocks_pending_memory",  # host code cannot touch it on a GPU
    "a_fork_waits_and_the_child_works",
}
GPU_ONLY = {"a_forked_child_cannot_use_the_gpu"}


def cases_of(target: str) -> list[str]:
    """The cases that run on a target."""
    left_out = GPU_ONLY if target == "host" else HOST_ONLY
    return [name for name in CASES if name not in left_out]


def main() -> None:
    global probe
    probe = load(sys.argv[1])
    results = {}
    for name in cases_of("cuda" if ON_GPU else "host"):
        try:
            CASES[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        gc.collect()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
