"""The C++ entries launch on the cuda target what launch.py, from which bundles are built, says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAMILIES = ["attention", "loss", "normalization", "activation", "rotary", "softmax", "optim"]
READS_BACK = {"loss"}  # and so needs its kernels' results
SCRIPT = Path(__file__).with_name("device_launches.py")


@pytest.mark.parametrize("family", FAMILIES)
def test_entries_launch_what_launch_py_says(family: str) -> None:
    """Dtypes, constants (block sizes among them), promised alignment, warps, stages and grids."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    recorded = "0" if family in READS_BACK else "1"
    double = {"RUDA_CUDA_DRIVER": "double", "RUDA_DOUBLE_RECORD_ONLY": recorded}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), family],
        env={**kept, **double, "RUDA_TARGET": "cuda"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
