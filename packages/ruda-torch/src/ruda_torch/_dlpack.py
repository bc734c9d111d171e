"""The one patch of torch's Python: the DLPack device of ruda tensors.

`torch.from_dlpack(tensor)` first asks `tensor.__dlpack_device__()`. In torch 2.11 to 2.13 that
method compares the device with the literal "privateuse1", which no renamed backend ever has, and
raises `ValueError: Unknown device type`. It also calls every pinned CPU tensor CUDA memory, which a
torch without CUDA then cannot import. The exchange itself is right. Nothing else of torch is
changed, and nothing at all in a minor version that is not listed here.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

import torch

AFFECTED_MINORS = ("2.11", "2.12", "2.13")


def patch() -> None:
    """Correct `torch.Tensor.__dlpack_device__` for ruda tensors and their pinned host memory."""
    minor = ".".join(torch.__version__.split(".")[:2])
    original = torch.Tensor.__dlpack_device__
    if minor not in AFFECTED_MINORS or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if torch.overrides.has_torch_function_unary(self):
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        if self.device.type == "ruda":
            return DLDeviceType.kDLExtDev, self.device.index or 0
        if self.device.type == "cpu" and torch.version.cuda is None:
            return DLDeviceType.kDLCPU, 0
        return original(self)

    replacement: Any = __dlpack_device__
    torch.Tensor.__dlpack_device__ = replacement
