"""Training steps on the cuda target (on the driver double) give the losses of the host target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

EXAMPLE = Path(__file__).parents[2] / "examples" / "random_llama.py"
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-3}


def steps(target: str, dtype: str, model: str, output: Path, cache: Path) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    driver = {"RUDA_CUDA_DRIVER": "double"} if target == "cuda" else {}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--target", target, "--dtype", dtype, "--model", model,
         "--json", str(output)],
        env={**kept, **driver, "RUDA_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violation" not in done.stderr, done.stderr
    result: dict[str, Any] = json.loads(output.read_text())
    return result


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("model", "dtype"),
    [("transformers", "float32"), ("transformers", "bfloat16"), ("plain", "float32")],
)
def test_losses_are_the_hosts(model: str, dtype: str, tmp_path: Path, cache: Path) -> None:
    host = steps("host", dtype, model, tmp_path / "host.json", cache)
    cuda = steps("cuda", dtype, model, tmp_path / "cuda.json", cache)
    assert "double" in cuda["device"] and "double" not in host["device"]
    assert len(host["losses"]) == 3
    assert cuda["losses"] == pytest.approx(host["losses"], rel=TOLERANCE[dtype])
