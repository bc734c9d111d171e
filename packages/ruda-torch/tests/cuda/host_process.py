"""Results of the host target, for the tests of the cuda target: a process has one target."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

RUN = """
import importlib.util, sys
import torch
import ruda_torch
path, function, result = sys.argv[1:]
spec = importlib.util.spec_from_file_location("cases", path)
module = importlib.util.module_from_spec(spec)
sys.modules["cases"] = module
spec.loader.exec_module(module)
torch.save(getattr(module, function)(), result)
"""


def on_host(path: Path, function: str) -> Any:
    """What a function of a file returns on the host target: tensors on the CPU, in any structure.

    The file is imported by its path: it must not import from its own folder.
    """
    environment = {**os.environ, "RUDA_TARGET": "host"}
    environment.pop("RUDA_CUDA_DRIVER", None)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.pt"
        subprocess.run(
            [sys.executable, "-c", RUN, str(path), function, str(result)],
            env=environment, check=True, timeout=300,
        )  # fmt: skip
        return torch.load(result)
