"""Registration of the device with PyTorch's Python side."""

from __future__ import annotations

import types

import torch

from . import _native


def register() -> None:
    torch.utils.rename_privateuse1_backend("ruda")
    module = types.ModuleType("torch.ruda")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.is_initialized = _native.is_initialized
    module._is_in_bad_fork = _native.in_bad_fork
    module._lazy_init = _native.initialize
    module.manual_seed_all = lambda seed: _native.default_generator(0).manual_seed(seed)
    torch._register_device_module("ruda", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
