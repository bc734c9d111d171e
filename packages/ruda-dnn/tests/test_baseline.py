"""The kernels for processors without AVX2 pass the same cases, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FAMILIES = ["attention", "normalization", "activation", "loss", "optim", "rotary", "softmax"]


@pytest.mark.skipif(os.environ.get("RUDA_CPU") == "baseline", reason="this is that process")
def test_baseline_passes_the_same_cases() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *(str(FOLDER / family) for family in FAMILIES)],
        env={**os.environ, "RUDA_CPU": "baseline"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
