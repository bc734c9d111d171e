"""What the operator tests share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ruda_runtime import conformance

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def tool(name: str) -> ModuleType:
    """A script of packages/ruda-torch/tools as a module."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def values(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def check(
    actual: Tensor, reference: Tensor, peer: Tensor | None = None, long: bool = False
) -> None:
    """The criteria of ruda_runtime.conformance; `peer` is torch's result on the CPU."""
    assert actual.device.type == "ruda", actual.device
    conformance.check(
        values(actual),
        values(reference),
        str(actual.dtype).removeprefix("torch."),
        peer=None if peer is None else values(peer),
        long_reduction=long,
    )


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers on the CPU, rounded to the dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
