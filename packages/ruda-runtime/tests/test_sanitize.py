"""The native library under AddressSanitizer and ThreadSanitizer: tools/sanitize.py.

A short run of both programs; 100,000 operations on the driver double with the marker `slow`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "sanitize.py"


def sanitize(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)
def test_the_stress_programs_are_clean() -> None:
    out = sanitize("--rounds", "625")
    assert out.count(" 0 wrong") == 8 and out.count("cuda, asynchronous: 5000 operations") == 2, out


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_operations_on_the_double_are_clean() -> None:
    out = sanitize("cuda", "--rounds", "12500")
    assert out.count(": 100000 operations") == out.count(" 0 wrong") == 4, out
