"""Memory handed out in these tests is poisoned: an element nobody wrote is NaN."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")

ENGINES = {"library": 1, "packed": 2}
if "avx512f" in Path("/proc/cpuinfo").read_text():  # else 2 has no such tiles either
    ENGINES["packed-avx2"] = 3


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every way to multiply, whichever this processor would take."""
    from ruda_blas import _native

    _native.choose_engine(request.param)
    yield request.param
    _native.choose_engine(0)
