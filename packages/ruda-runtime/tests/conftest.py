"""Fixtures: the C++ probe, compiled once per instruction set, and Python in a clean process."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("RUDA_TARGET", "host")  # read at the first use, see test_environment.py

import ruda_runtime as rr
from ruda_runtime import _native

ON_GPU = os.environ.get("RUDA_TARGET") == "cuda" and not os.environ.get("RUDA_CUDA_DRIVER")


class Error(ctypes.Structure):
    """ruda_error of abi.h."""

    _fields_ = (("code", ctypes.c_int32), ("message", ctypes.c_char * 1020))

    @property
    def text(self) -> str:
        return self.message.decode()


def table_address() -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return pointer(_native.api, b"ruda_runtime._native.api")


@pytest.fixture(scope="session")
def build_probe(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ctypes.CDLL]:
    """Compile probe.cpp with extra flags and bind it to the runtime."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.fail("the tests of the C++ headers need a C++ compiler: install one, or set CXX")
    folder = tmp_path_factory.mktemp("probe")

    def build(name: str, *flags: str) -> ctypes.CDLL:
        library = folder / f"{name}.so"
        sources = [Path(__file__).with_name(each) for each in ("probe.cpp", "device_work.cpp")]
        subprocess.run(
            [compiler, "-std=c++20", "-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-pthread",
             *flags, "-I", rr.get_include(), *map(str, sources), "-ldl", "-o", str(library)],
            check=True,
        )  # fmt: skip
        loaded = ctypes.CDLL(str(library))
        error = Error()
        loaded.probe_attach.argtypes = (ctypes.c_void_p, ctypes.POINTER(Error))
        assert loaded.probe_attach(table_address(), ctypes.byref(error)) == 0, error.text
        loaded.probe_sum.restype = ctypes.c_float
        loaded.probe_sum.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        loaded.probe_parts.argtypes = (ctypes.c_int64,) * 3 + (ctypes.c_void_p,)
        loaded.probe_nested.restype = ctypes.c_int64
        loaded.probe_nested.argtypes = (ctypes.c_int64, ctypes.c_int64)
        loaded.probe_thread_count.argtypes = (ctypes.c_int32, ctypes.c_int64)
        loaded.probe_allocator.restype = ctypes.c_int64
        loaded.probe_allocator.argtypes = (ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)
        loaded.probe_launch.argtypes = (
            ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.POINTER(Error),
        )  # fmt: skip
        return loaded

    return build


@pytest.fixture(scope="session")
def probe(build_probe: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    return build_probe("baseline")


@pytest.fixture(scope="session")
def fast_probe(build_probe: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    """The probe with x86-64-v3 instructions."""
    if platform.machine() != "x86_64" or _native.cpu_level() < 1:
        pytest.skip("needs a CPU with x86-64-v3")
    return build_probe("v3", "-O3", "-march=x86-64-v3")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """set_num_threads, undone afterwards."""
    before = rr.get_num_threads()
    yield rr.set_num_threads
    rr.set_num_threads(before)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process with RUDA_* variables only as given."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_python


@pytest.fixture
def python_output() -> Callable[..., str]:
    """The same, but the process must succeed; gives its standard output."""

    def run(code: str, **environment: str) -> str:
        done = run_python(code, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
