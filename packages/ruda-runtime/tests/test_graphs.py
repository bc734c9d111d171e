"""Graphs under synchronous and asynchronous dispatch, on the host and on the driver double."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ON_GPU

FOLDER = Path(__file__).resolve().parent
CASES = [
    line.split("(")[0].removeprefix("def case_")
    for line in (FOLDER / "graph_cases.py").read_text().splitlines()
    if line.startswith("def case_")
]
WAYS = [("0", "0"), ("1", "0"), ("1", "1")]  # RUDA_ASYNC, RUDA_POISON


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("graph_kernels"))


@functools.cache
def results(library: str, mode: str, poison: str, cache: str = "") -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
    where = {"RUDA_TARGET": "host"}
    if cache:
        path = os.pathsep.join([str(FOLDER / "cuda"), *filter(None, [kept.get("PYTHONPATH")])])
        where = {
            **({} if ON_GPU else {"RUDA_CUDA_DRIVER": "double"}),
            "RUDA_TARGET": "cuda", "RUDA_CACHE_DIR": cache, "PYTHONPATH": path,
        }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(FOLDER / "graph_cases.py"), library],
        env={**kept, "RUDA_ASYNC": mode, "RUDA_POISON": poison, **where},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # the double lists what is alive at exit
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("mode", "poison"), WAYS)
@pytest.mark.parametrize("case", CASES)
def test_case(probe: ctypes.CDLL, case: str, mode: str, poison: str) -> None:
    problem = results(probe._name, mode, poison)[case]
    assert not problem, problem


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the kernels need Triton")
@pytest.mark.parametrize(("mode", "poison"), WAYS)
@pytest.mark.parametrize("case", CASES)
def test_case_on_the_double(
    probe: ctypes.CDLL, kernel_cache: str, case: str, mode: str, poison: str
) -> None:
    problem = results(probe._name, mode, poison, kernel_cache)[case]
    assert not problem, problem
