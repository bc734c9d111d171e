"""Adding adapters to a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from ..errors import AdapterError, TargetModuleError
from ..targets import (
    ALL_LINEAR,
    TargetReport,
    module_device,
    qualified_modules,
    replace_module,
    resolve_targets,
)
from .layer import LoRALinear

_ADAPTER_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _check_settings(rank: int, alpha: float, dtype: torch.dtype, dropout: float) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank <= 0:
        raise AdapterError(f"[inject_lora] rank must be a positive integer: got {rank!r}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise AdapterError(f"[inject_lora] alpha must be a finite number: got {alpha!r}")
    if alpha <= 0:
        raise AdapterError(f"[inject_lora] alpha must be positive: got {alpha!r}")
    if dtype not in _ADAPTER_DTYPES:
        raise AdapterError(f"[inject_lora] adapter_dtype must be a floating dtype: got {dtype}")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise AdapterError(f"[inject_lora] dropout must be in [0, 1): got {dropout!r}")


def lora_modules(model: nn.Module) -> dict[str, LoRALinear]:
    """Qualified name -> adapter layer, in model order, each shared layer once."""
    found: dict[str, LoRALinear] = {}
    seen: set[int] = set()
    for name, module in qualified_modules(model).items():
        if isinstance(module, LoRALinear) and id(module) not in seen:
            seen.add(id(module))
            found[name] = module
    return found


def inject_lora(
    model: nn.Module,
    target_modules: str | Sequence[str] = ALL_LINEAR,
    rank: int = 16,
    alpha: float = 16.0,
    adapter_dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    use_rslora: bool = False,
) -> TargetReport:
    """Freeze a model and replace the targeted linear layers by `LoRALinear`, in place.

    target_modules: see `resolve_targets`. A layer shared under several names gets one adapter,
    under all of them. Every other parameter is frozen and every gradient is cleared.

    Nothing is changed when an argument is wrong: TargetModuleError for targets, AdapterError for
    settings, a second injection, or a model on the meta device.
    """
    _check_settings(rank, alpha, adapter_dtype, dropout)
    present = lora_modules(model)
    if present:
        raise AdapterError(
            f"[inject_lora] the model already has {len(present)} adapters (the first at "
            f"{next(iter(present))!r}): merge_lora them, or start from a fresh model"
        )
    report = resolve_targets(model, target_modules, operator="inject_lora")
    modules = qualified_modules(model)
    for name in report.names:
        if module_device(modules[name]).type == "meta":
            raise AdapterError(
                f"[inject_lora] {name!r} has no values (meta device): load the weights first"
            )
        if not hasattr(modules[name], "in_features"):
            raise TargetModuleError(f"[inject_lora] {name!r} has no in_features")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    parents = [module for module in model.modules() if module._modules]
    for name in report.names:
        layer = modules[name]
        adapted = LoRALinear(layer, rank, float(alpha), adapter_dtype, dropout, use_rslora)
        replace_module(model, layer, adapted, parents)
    return report
