"""Settings of the process: bad values are errors that name the variable; importing is light."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("RUDA_NUM_THREADS", "0", "a whole number from 1 to 1024"),
        ("RUDA_NUM_THREADS", "two", "a whole number from 1 to 1024"),
        ("RUDA_NUM_THREADS", "2.5", "a whole number from 1 to 1024"),
        ("RUDA_NUM_THREADS", " 2", "a whole number from 1 to 1024"),
        ("RUDA_CPU", "avx512", "'baseline' or 'auto'"),
        ("RUDA_MEMORY_LIMIT", "4GB", "a whole number of bytes above 0"),
        ("RUDA_MEMORY_LIMIT", "-1", "a whole number of bytes above 0"),
        ("RUDA_MEMORY_LIMIT", "99999999999999999999", "a whole number of bytes above 0"),
        ("RUDA_POISON", "yes", "'0' or '1'"),
        ("RUDA_ASYNC", "2", "'0' or '1'"),
        ("RUDA_MAX_STREAMS", "0", "a whole number from 1 to 1024"),
    ],
)
def test_a_bad_value_fails_the_import(python: Python, name: str, value: str, wanted: str) -> None:
    done = python("import ruda_runtime", **{name: value})
    assert done.returncode == 1
    assert f"RudaValueError: [{name}] got '{value}', wanted {wanted}" in done.stderr


def test_an_empty_value_counts_as_absent(python_output: Callable[..., str]) -> None:
    empty = dict.fromkeys(["RUDA_NUM_THREADS", "RUDA_CPU", "RUDA_MEMORY_LIMIT", "RUDA_POISON",
                           "RUDA_ASYNC", "RUDA_MAX_STREAMS", "RUDA_TARGET"], "")  # fmt: skip
    code = "import ruda_runtime as rr; print(rr.devices()[0].target, rr._native.max_streams)"
    assert python_output(code, **empty) == "host 32"


def test_cpu_level(python_output: Callable[..., str]) -> None:
    code = (
        "import ruda_runtime as rr; d = rr.devices()[0]\n"
        "print(rr._native.cpu_level(), 'baseline' in d.capabilities, 'x86-64-v3' in d.capabilities)"
    )
    assert python_output(code, RUDA_CPU="baseline", RUDA_TARGET="host") == "0 True False"
    level = python_output(code, RUDA_CPU="auto", RUDA_TARGET="host")
    assert level == python_output(code, RUDA_TARGET="host")
    flags = {"0": "0 True False", "1": "1 False True"}
    assert level == flags[level[0]]


NO_GPU = ("libcuda.so.1 cannot be loaded", "no NVIDIA GPU is visible")


def test_target(python: Python) -> None:
    code = (
        "import warnings; warnings.simplefilter('always')\n"
        "import ruda_runtime as rr; rr.devices(); rr.devices(); rr.empty(1); print(rr.devices()[0])"
    )
    done = python(code, RUDA_TARGET="host")
    assert (done.stdout, done.stderr) == ("host:0\n", "")
    for environment in ({}, {"RUDA_TARGET": "auto"}):
        done = python(code, CUDA_VISIBLE_DEVICES="", **environment)
        assert done.stdout == "host:0\n"
        assert done.stderr.count("RuntimeWarning: RUDA_TARGET=auto chose the host target") == 1
        assert done.stderr.startswith("<string>:2: ")  # it points at the user's line
    done = python(code, RUDA_TARGET="cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "DeviceError: [RUDA_TARGET] got 'cuda', but " in done.stderr
    assert any(reason in done.stderr for reason in NO_GPU)
    done = python(code, RUDA_TARGET="gpu")
    assert done.returncode == 1
    assert "RudaValueError: [RUDA_TARGET] got 'gpu', wanted one of: auto, cuda, host" in done.stderr


@pytest.mark.parametrize("use", ["rr.devices()", "rr.synchronize()", "rr.empty(3)"])
def test_where_warnings_are_errors_only_the_first_use_fails(
    python_output: Callable[..., str], use: str
) -> None:
    code = f"""
import warnings; warnings.simplefilter("error")
import ruda_runtime as rr
for _ in range(3):
    try:
        {use}
        print("works")
    except RuntimeWarning as warning:
        print(str(warning).split(":")[0])
"""
    wanted = ["RUDA_TARGET=auto chose the host target", "works", "works"]
    assert python_output(code).splitlines() == wanted


def test_the_target_is_read_once_at_the_first_use(python_output: Callable[..., str]) -> None:
    code = """
import os, ruda_runtime as rr
os.environ["RUDA_TARGET"] = "host"   # after the import, before the first use
rr.devices()
os.environ["RUDA_TARGET"] = "nonsense"
print(rr.devices()[0])
"""
    assert python_output(code) == "host:0"


def test_a_wrong_target_stays_wrong(python_output: Callable[..., str]) -> None:
    code = """
import numpy as np, ruda_runtime as rr
array = np.ones(3)
for use in (rr.devices, rr.default_stream, rr.synchronize, lambda: rr.empty(3),
            lambda: rr.Tensor.from_numpy(array), lambda: rr.from_dlpack(array)):
    for _ in range(2):
        try:
            use()
        except rr.DeviceError as error:
            assert "libcuda.so.1 cannot be loaded" in str(error) or "no NVIDIA GPU" in str(error)
        else:
            raise AssertionError(use)
print("ok")
"""
    assert python_output(code, RUDA_TARGET="cuda", CUDA_VISIBLE_DEVICES="") == "ok"


def test_importing_is_light(python_output: Callable[..., str]) -> None:
    code = """
import sys, threading, time
start = time.process_time()
import ruda_runtime
elapsed = time.process_time() - start  # of this process: other work does not count
tasks = len(__import__("os").listdir("/proc/self/task"))
heavy = [name for name in ("torch", "triton", "numpy", "ml_dtypes") if name in sys.modules]
reserved = ruda_runtime.memory_stats()["reserved"]
print(elapsed < 0.2, tasks, threading.active_count(), heavy, reserved)
"""
    assert python_output(code) == "True 1 1 [] 0"


def test_serial_work_starts_no_thread(python_output: Callable[..., str]) -> None:
    code = """
import os, numpy as np, ruda_runtime as rr
before = len(os.listdir("/proc/self/task"))
t = rr.Tensor.from_numpy(np.ones((300, 300), np.float32)).permute(1, 0).contiguous()
assert len(os.listdir("/proc/self/task")) == before and rr._native.started_workers() == 0
print("ok")
"""
    assert python_output(code, RUDA_TARGET="host") == "ok"
