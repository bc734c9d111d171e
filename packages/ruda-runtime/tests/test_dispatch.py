"""Streams and events under synchronous and asynchronous dispatch: one table of cases."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ruda_runtime as rr

from . import stream_cases
from .conftest import ON_GPU, Error

CASES = Path(stream_cases.__file__)


def environment(**values: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
    return {**kept, "RUDA_TARGET": "host", **values}


DOUBLE = {
    "RUDA_TARGET": "cuda",
    "RUDA_CUDA_DRIVER": "double",
    "RUDA_DOUBLE_RECORD_ONLY": "1",  # the cases launch no kernel
    "RUDA_DOUBLE_LEAKS": "0",
}
if ON_GPU:  # --target cuda
    DOUBLE = {"RUDA_TARGET": "cuda"}


@functools.cache
def results(library: str, mode: str, poison: str, target: str = "host") -> dict[str, str]:
    where = DOUBLE if target == "cuda" else {}
    done = subprocess.run(
        [sys.executable, str(CASES), library],
        env=environment(RUDA_ASYNC=mode, RUDA_POISON=poison, **where),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("mode", "poison"), [("0", "0"), ("1", "0"), ("1", "1")])
@pytest.mark.parametrize("case", stream_cases.cases_of("host"))
def test_case(probe: ctypes.CDLL, case: str, mode: str, poison: str) -> None:
    problem = results(probe._name, mode, poison)[case]
    assert not problem, problem


@pytest.mark.parametrize(("mode", "poison"), [("0", "0"), ("1", "0"), ("1", "1")])
@pytest.mark.parametrize("case", stream_cases.cases_of("cuda"))
def test_case_on_the_double(probe: ctypes.CDLL, case: str, mode: str, poison: str) -> None:
    problem = results(probe._name, mode, poison, "cuda")[case]
    assert not problem, problem


def test_the_interface_is_the_same_on_the_double() -> None:
    """test_streams.py, which this process runs on the host, taken there by the plugin."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "ruda_runtime.testing.pytest_plugin",
         "--target", "double", str(CASES.with_name("test_streams.py"))],
        env=environment(), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


START = f"import sys; sys.path.insert(0, {str(CASES.parent)!r}); import stream_cases as s\n"


def run(probe: ctypes.CDLL, code: str, **values: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + f"s.probe = s.load({probe._name!r})\n" + code],
        env=environment(**{"RUDA_ASYNC": "1", **values}),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_process_ends_with_work_in_flight(probe: ctypes.CDLL) -> None:
    code = "x = s.zeros()\nfor i in range(20): s.slow(x, 1, 5)\nprint('end')"
    done = run(probe, code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_an_error_that_nobody_asked_for_is_printed_at_the_end(probe: ctypes.CDLL) -> None:
    done = run(probe, "s.slow(s.zeros(4, 'float64'), 1, 5)")
    assert done.returncode == 0
    assert "an error that nobody asked for: [probe.slow]" in done.stderr


def test_work_submitted_while_the_interpreter_ends_still_runs(probe: ctypes.CDLL) -> None:
    code = """
x = s.zeros()
values = x.numpy()
class Last:
    def __del__(self):
        s.slow(x, 1, 5)
        print(float(values[0]))
kept = Last()
"""
    done = run(probe, code)
    assert done.stdout == "1.0\n", done.stderr


def test_workers_start_with_the_first_work(probe: ctypes.CDLL) -> None:
    code = """
from pathlib import Path
def names():
    return [(t / "comm").read_text().strip() for t in Path("/proc/self/task").iterdir()]
side = s.rr.Stream(); x = s.zeros(); before = names()
with s.rr.stream(side): s.slow(x, 1, 0)
print(before.count("ruda-stream"), names().count("ruda-stream"))
"""
    assert run(probe, code).stdout == "0 1\n"
    assert run(probe, code, RUDA_ASYNC="0").stdout == "0 0\n"


def test_running_out_of_memory_waits_for_what_is_in_use(probe: ctypes.CDLL) -> None:
    code = """
for _ in range(30):
    side = s.rr.Stream()
    with s.rr.stream(side):
        x = s.rr.empty(2_000_000, "float32"); s.slow(x, 1, 2); del x
s.rr.synchronize()
print(s.rr.memory_stats()["reserved"] <= 40_000_000)
"""
    assert run(probe, code, RUDA_MEMORY_LIMIT="40000000").stdout == "True\n"


def test_a_kernel_without_a_description_is_refused(probe: ctypes.CDLL) -> None:
    error = Error()
    assert probe.probe_register_undescribed(ctypes.byref(error)) == 1
    assert "needs the description of its arguments" in error.text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("void* x;", "a pointer to something that cannot be copied"),
        ("const int64_t* sizes; int64_t count;", "a list needs its length"),
        ("const ruda_view* const* list; int64_t n;", "a list needs its length"),
        ("ruda_view* x;", "a pointer to something that cannot be copied"),
        ("ruda_view x;", "a field is a plain number"),
        ("const ruda_view* views[2];", "an array of pointers"),
        ("int64_t a, b;", "one field a declaration"),
        ("const double* const* rows; int64_t rows_count;", "cannot be copied"),
        ("struct inner { int64_t a; } x;", "one field a declaration"),
    ],
)
def test_fields_that_cannot_be_copied_do_not_compile(
    tmp_path: Path, fields: str, problem: str
) -> None:
    source = tmp_path / "fields.cpp"
    source.write_text(f"#include <ruda/abi.h>\nRUDA_ARGUMENTS(wrong_args, {fields})\n")
    compiler = os.environ.get("CXX") or "c++"
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-I", rr.get_include(), str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0 and problem in done.stderr, done.stderr


def test_another_library_decides_the_number_of_threads(
    probe: ctypes.CDLL, threads: Callable[[int], None]
) -> None:
    own = rr.get_num_threads()
    error = Error()
    assert probe.probe_follow_threads(1, ctypes.byref(error)) == 0, error.text
    try:
        assert rr.get_num_threads() == 3
        rr.set_num_threads(5)
        assert rr.get_num_threads() == 5
        for count in (4, 1, 2):
            probe.probe_set_other_threads(count)
            assert rr.get_num_threads() == count
            assert probe.probe_callers(1, 10) == 10
        assert rr._native.started_workers() >= 3  # the loops with four threads were the pool's
    finally:
        probe.probe_follow_threads(0, ctypes.byref(error))
    assert rr.get_num_threads() == own
