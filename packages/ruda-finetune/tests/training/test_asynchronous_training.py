"""Asynchronous dispatch changes no number of a training run. Each mode is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RUN = """
import json, sys
sys.path.insert(0, {folder!r})
import conftest, torch
import ruda_runtime
from test_nf4_training import losses

kit = conftest
runs = {{
    f"{{dtype}}, checkpointing {{checkpointing}}": losses(
        kit, "ruda:0", dense=False, fused=True, steps=6, dtype=dtype, checkpointing=checkpointing)
    for dtype in (torch.float32, torch.bfloat16) for checkpointing in (False, True)
}}
print(json.dumps([ruda_runtime._native.asynchronous(), ruda_runtime.launch_count(), runs]))
"""


def train(mode: str) -> tuple[bool, int, dict[str, list[float]]]:
    code = RUN.format(folder=str(Path(__file__).parent))
    kept = {k: v for k, v in os.environ.items() if k not in ("RUDA_ASYNC", "RUDA_TORCH_ASYNC")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600,
        env={**kept, "RUDA_TORCH_ASYNC": mode, "RUDA_TARGET": "host"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_losses_are_bit_equal():
    synchronous, launches, wanted = train("0")
    asynchronous, queued, found = train("1")
    assert (synchronous, asynchronous) == (False, True)
    assert launches == queued > 100
    assert found == wanted and all(len(set(run)) > 1 for run in found.values())
