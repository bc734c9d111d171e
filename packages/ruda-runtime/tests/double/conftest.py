"""The double as this process's driver, and fresh processes with other settings."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def loaded_double() -> None:
    from ruda_runtime import testing

    before = dict(os.environ)
    if os.environ.get("RUDA_CUDA_DRIVER") != "double":  # `--target double` has loaded it
        testing.use_driver_double(seed=20, leaks=False)
    os.environ.update({"RUDA_TARGET": before.get("RUDA_TARGET", "host")})
    from . import driver

    driver.start()


@pytest.fixture
def double(loaded_double: None) -> Iterator[Any]:
    """The driver module of these tests; a report that the test does not take fails it."""
    from ruda_runtime import testing

    from . import driver

    testing.clear_reports()
    yield driver
    left = testing.reports()
    testing.clear_reports()
    assert left == []


@pytest.fixture
def found(double: Any) -> Callable[..., str]:
    """The one report of a planted bug, which must have these words in it."""
    from ruda_runtime import testing

    def take(*words: str) -> str:
        reports = testing.reports()
        assert reports, "the double found nothing"
        text = reports[0]
        for word in words:
            assert word in text, text
        testing.clear_reports()
        return text

    return take


@pytest.fixture
def fresh() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a process of its own, on a double with these settings."""

    def run(code: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
        head = (
            f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
            "from ruda_runtime import testing\n"
            f"testing.use_driver_double(**{settings!r})\n"
            "import driver as d\nfrom driver import cuda, ok, np\n"
        )
        return subprocess.run(
            [sys.executable, "-c", head + textwrap.dedent(code)],
            env=kept, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run
