"""Each test of this folder runs a script in a process of its own, on the driver double, or, with
`--target cuda`, on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import ON_GPU

FOLDER = Path(__file__).resolve().parent
DRIVER = {} if ON_GPU else {"RUDA_CUDA_DRIVER": "double"}
PRELUDE = """
import os, sys, warnings
import numpy as np
import ruda_runtime as rr

def error_of(call, kind=rr.RudaError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no error")

def violations():  # what the double found; a GPU finds nothing
    if os.environ.get("RUDA_CUDA_DRIVER") != "double":
        return []
    from ruda_runtime.testing import reports
    return reports()
"""
KERNELS = PRELUDE + "import examples as e\nfrom ruda_runtime.kernel import compile_counts\n"

Script = Callable[..., subprocess.CompletedProcess[str]]


def run_script(
    cache: Path, code: str, *, prelude: str = PRELUDE, **values: str
) -> subprocess.CompletedProcess[str]:
    """Run code on the double or GPU; RUDA_* variables are those given and the driver's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
    where = {
        **DRIVER, "RUDA_TARGET": "cuda", "RUDA_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(FOLDER), *filter(None, [kept.pop("PYTHONPATH", "")])]),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code)],
        env={**kept, **where, **values},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel cache that the tests share: each example is compiled once."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def script(cache: Path) -> Script:
    """Run code there and return the finished process."""

    def run(code: str, **values: str) -> subprocess.CompletedProcess[str]:
        return run_script(cache, code, **values)

    return run


@pytest.fixture
def passes(cache: Path) -> Callable[..., str]:
    """The same; the code must end well, its output is returned."""

    def run(code: str, **values: str) -> str:
        done = run_script(cache, code, **values)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def kernel_passes(cache: Path) -> Callable[..., str]:
    """The same, with the examples as `e`."""
    pytest.importorskip("triton")

    def run(code: str, **values: str) -> str:
        done = run_script(cache, code, prelude=KERNELS, **values)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
