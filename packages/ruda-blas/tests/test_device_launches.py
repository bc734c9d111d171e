"""The C++ entries launch on the cuda target what launch.py, from which bundles are built, says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("device_launches.py")


@pytest.mark.parametrize("family", ["gemm", "nf4"])
def test_entries_launch_what_launch_py_says(family: str) -> None:
    """Dtypes, constants (tiles among them), promised alignment, warps, stages and grids."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    double = {"RUDA_TARGET": "cuda", "RUDA_CUDA_DRIVER": "double", "RUDA_DOUBLE_RECORD_ONLY": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), family],
        env={**kept, **double}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
