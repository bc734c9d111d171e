"""Launches from C++ through ruda/device.hpp: right, and without Python when warm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .launches import build

SCRIPT = """
from launches import Launcher
launches = Launcher(os.environ["LAUNCH_TIME"])
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("launch")))


def test_a_launch_from_cpp(kernel_passes: Callable[..., str], library: str) -> None:
    kernel_passes(
        SCRIPT
        + """
x, y, out = e.tensors(1024)
launches(x, y, out, 1024, 3)
assert (out.numpy() == np.arange(1024) * 2 + 1).all()
part = x.slice(0, 1, 1024)
launches(part, y, out, 1008, 1)
assert (out.numpy()[:1008] == np.arange(1, 1009) * 2 + 1).all()
assert compile_counts()["compiled"] + compile_counts()["disk_hits"] == 2
assert compile_counts()["memory_hits"] == 2
text = error_of(lambda: launches(rr.empty(3, "int8"), y, out, 3, 1))
assert text.startswith("[example.scale_add] x: got dtype int8"), text
""",
        LAUNCH_TIME=library,
    )


def test_a_kernel_that_nobody_defines_is_named(
    script: Callable[..., subprocess.CompletedProcess[str]], library: str
) -> None:
    done = script(
        SCRIPT + "x = rr.empty(4)\nprint(error_of(lambda: launches(x, x, x, 4, 1)))",
        LAUNCH_TIME=library,
    )
    assert "[example.scale_add] no device kernel of that name is defined" in done.stdout, (
        done.stderr
    )


def test_a_warm_launch_from_cpp_takes_two_microseconds(
    kernel_passes: Callable[..., str], library: str
) -> None:
    """Of the best of several rounds: other processes may run."""
    spent = kernel_passes(
        SCRIPT
        + "x, y, out = e.tensors(1024)\nlaunches(x, y, out, 1024, 1)\n"
        + "print(min(launches(x, y, out, 1024, 5000) for _ in range(15)) * 1e6)",
        LAUNCH_TIME=library,
        RUDA_ASYNC="1",
        RUDA_DOUBLE_RECORD_ONLY="1",
    )
    assert float(spent) <= 2, spent
