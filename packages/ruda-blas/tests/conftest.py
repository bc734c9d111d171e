"""Memory handed out in these tests is poisoned: an element nobody wrote is NaN.

With `--target double` the files of the entries run on the driver double. It interprets kernels,
program by program, so that what is only large is left to the host target and to GPUs, and to the
tests of the kernels alone.
"""

import os
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")

ENGINES = {"library": 1, "packed": 2}
if "avx512f" in Path("/proc/cpuinfo").read_text():  # else 2 has no such tiles either
    ENGINES["packed-avx2"] = 3


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every way to multiply on the host, whichever this processor would take."""
    from ruda_blas import _native

    _native.choose_engine(request.param)
    yield request.param
    _native.choose_engine(0)


HOST_TESTS = {
    "test_panels": "the host's panels",
    "test_tiles_of_any_width_give_the_same_bits": "the host's tiles",
    "test_nan_and_infinity_in_panels": "the host's panels",
    "test_scratch_of_half_products_is_bounded": "the host's scratch memory",
    "test_scratch_is_bounded": "the host's scratch memory",
    "test_bits_do_not_depend_on_the_threads": "the host's threads",
}
LARGE_TESTS = {"test_peer"}
MOST_STEPS = 40
"""Steps of tiles along the sum, of all programs: less than a tenth of a second."""


def _steps(case: Any) -> int:
    """How many steps of tiles of about 64 by 64 by 32 a case takes, or as many of few rows."""
    if hasattr(case, "weight"):
        m, n, k, batches = case.m, case.weight.rows, case.weight.cols, 1
        if m <= 4:
            return ceil(n / 4) * (3 * ceil(k / 512) + case.rank // 2)
    elif hasattr(case, "a"):
        (*left, m, k), (*right, _, n) = case.a, case.b
        batches = max(prod(left), prod(right))
    else:
        return 0
    return batches * ceil(m / 64) * ceil(n / 64) * ceil(k / 32)


def _of_the_host(item: pytest.Item) -> str | None:
    """Why a test says nothing about the cuda target."""
    name = getattr(item, "originalname", item.name)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if Path(item.path).name == "test_autotune.py":
        return "about the host's strategies"
    if Path(item.path).name.endswith("_kernels.py"):
        return "interprets kernels by itself, without a target"
    if name in HOST_TESTS:
        return HOST_TESTS[name]
    if parameters.get("strategy") == "library":
        return "the host's library"
    if parameters.get("engine", 1) != 1:
        return "the host's ways to multiply are the same kernels here"
    return None


def _large(item: pytest.Item) -> str | None:
    """Why a test is left to GPUs."""
    name = getattr(item, "originalname", item.name)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if name in LARGE_TESTS or _steps(parameters.get("case")) > MOST_STEPS:
        return "large: seconds of interpretation"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from ruda_runtime.testing.pytest_plugin import leave_out_on_gpus  # reads the environment above

    leave_out_on_gpus(config, items, _of_the_host, _large)
