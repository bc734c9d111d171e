"""The thread pool through parallel_for of entry.hpp."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_runtime import _native

from .conftest import Error


def parts(probe: ctypes.CDLL, begin: int, end: int, grain: int) -> tuple[np.ndarray, int]:
    filled = np.full(max(end - begin, 0), -1, np.int64)
    return filled, probe.probe_parts(begin, end, grain, filled.ctypes.data)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("begin", "end", "grain"),
    [(0, 1, 1), (0, 10, 3), (5, 1005, 7), (-50, 50, 9), (0, 4096, 1), (0, 100, 1000), (0, 7, 0)],
)
def test_parts_depend_on_range_and_grain_only(
    probe: ctypes.CDLL,
    threads: Callable[[int], None],
    count: int,
    begin: int,
    end: int,
    grain: int,
) -> None:
    threads(count)
    filled, largest = parts(probe, begin, end, grain)
    step = max(grain, 1)
    want = begin + np.arange(end - begin) // step * step
    assert np.array_equal(filled, want)
    assert 0 <= largest < count


def test_an_empty_or_reversed_range_runs_nothing(probe: ctypes.CDLL) -> None:
    assert parts(probe, 3, 3, 1)[0].size == 0
    assert parts(probe, 3, -3, 1)[0].size == 0


def test_a_range_up_to_the_largest_integer(probe: ctypes.CDLL) -> None:
    """The end of the last part must not be computed by a sum that overflows."""
    end = 2**63 - 1
    filled = np.full(10, -1, np.int64)
    probe.probe_parts(end - 10, end, 4, filled.ctypes.data)
    assert filled.tolist() == [end - 10] * 4 + [end - 6] * 4 + [end - 2] * 2


def test_sums_are_equal_for_any_number_of_threads(
    probe: ctypes.CDLL, threads: Callable[[int], None]
) -> None:
    values = np.random.default_rng(1).standard_normal(100_003).astype(np.float32)
    sums = set()
    for count in (1, 2, 3, 5, 16):
        threads(count)
        for _ in range(5):
            sums.add(probe.probe_sum(values.ctypes.data, values.size, 1000))
    assert len(sums) == 1
    assert sums.pop() == pytest.approx(values.astype(np.float64).sum(), abs=1e-2)


def test_more_than_one_thread_takes_part(
    probe: ctypes.CDLL, threads: Callable[[int], None]
) -> None:
    threads(2)
    assert probe.probe_thread_count(50, 20_000) == 2
    assert _native.started_workers() == 1
    threads(1)
    assert probe.probe_thread_count(5, 1000) == 1
    assert _native.started_workers() == 0


def test_nested_loops_run_in_their_outer_part(
    probe: ctypes.CDLL, threads: Callable[[int], None]
) -> None:
    for count in (1, 3):
        threads(count)
        assert probe.probe_nested(20, 17) == 20 * 17
    # One outer part is no loop: the inner one may use the pool, and all indices still run once.
    threads(2)
    filled, _ = parts(probe, 0, 50, 5)
    assert (filled >= 0).all()


def test_many_calling_threads(probe: ctypes.CDLL, threads: Callable[[int], None]) -> None:
    threads(3)
    assert probe.probe_callers(8, 200) == 8 * 200


def test_workers_stay_below_a_count_that_was_read_before_another_thread_raised_it(
    probe: ctypes.CDLL, threads: Callable[[int], None]
) -> None:
    """Scratch is sized by num_threads(): a worker beyond it would write past the end."""
    threads(1)
    assert probe.probe_raised_count(4) == 0
    assert rr.get_num_threads() == 4
    assert probe.probe_thread_count(50, 20_000) > 1  # later loops use them


def test_resizing_between_loops(probe: ctypes.CDLL, threads: Callable[[int], None]) -> None:
    for round_number in range(30):
        threads(1 + round_number % 4)
        assert probe.probe_callers(2, 3) == 6


def test_an_exception_of_a_part_becomes_a_status(
    probe: ctypes.CDLL, threads: Callable[[int], None]
) -> None:
    for count in (1, 2):
        threads(count)
        error = Error()
        assert probe.probe_exception(ctypes.byref(error)) == error.code == 5
        assert error.text == "[probe] part 37 failed"
    assert probe.probe_callers(1, 10) == 10


def test_set_num_threads_checks_its_argument() -> None:
    before = rr.get_num_threads()
    for wrong in (0, -1, 1025, 2**40):
        with pytest.raises(rr.RudaValueError, match=r"\[set_num_threads\] count: got .*, wanted 1"):
            rr.set_num_threads(wrong)
    with pytest.raises(TypeError):
        rr.set_num_threads(1.5)  # type: ignore[arg-type]
    assert rr.get_num_threads() == before


FORK = """
import ctypes, os
import ruda_runtime as rr
rr.set_num_threads(3)
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
probe = ctypes.CDLL({library!r})
error = ctypes.create_string_buffer(1024)
table = ctypes.c_void_p(pointer(rr._native.api, b"ruda_runtime._native.api"))
assert probe.probe_attach(table, error) == 0
assert probe.probe_callers(2, 10) == 20 and rr._native.started_workers() == 2
held = rr.empty((1000,))
for _ in range(5):
    child = os.fork()
    if child == 0:
        ok = rr._native.started_workers() == 0 and rr.get_num_threads() == 3
        ok = ok and probe.probe_callers(4, 10) == 40 and rr._native.started_workers() == 2
        ok = ok and rr.memory_stats()["count"] == 1 and rr.empty((10,)).size == 10
        os._exit(0 if ok else 1)
    assert probe.probe_callers(2, 10) == 20
    assert os.waitpid(child, 0)[1] == 0
print("ok")
"""


def test_a_forked_child_gets_a_pool_of_its_own(
    probe: ctypes.CDLL, python_output: Callable[..., str]
) -> None:
    code = FORK.format(library=probe._name)
    assert python_output(code, RUDA_TARGET="host") == "ok"


def test_default_count_is_the_affinity(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import ruda_runtime as rr; print(rr.get_num_threads(), rr._native.cpu_count())"
    )
    assert python(code).stdout.split() == ["1", "1"]
    assert python(code, RUDA_NUM_THREADS="5").stdout.split() == ["5", "1"]
