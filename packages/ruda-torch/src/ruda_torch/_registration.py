"""Registration of the device with PyTorch's Python side."""

from __future__ import annotations

import torch

from . import _dlpack, device_module


def register() -> None:
    """Give the device its name, its module and its tensor methods."""
    # Once in a process: PyTorch wraps enums and adds methods here and refuses a second time.
    torch.utils.rename_privateuse1_backend("ruda")
    torch._register_device_module("ruda", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _dlpack.patch()
    # A backward thread of the device would have an OpenMP team of its own, which makes small
    # operators many times slower; the host target has nothing to overlap with it.
    torch.autograd.set_multithreading_enabled(False)
