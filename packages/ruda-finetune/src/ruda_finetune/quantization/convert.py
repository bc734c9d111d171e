"""Turning a model's linear layers into NF4 layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..errors import QuantizationError, TargetModuleError
from ..targets import ALL_LINEAR, TargetReport, qualified_modules, replace_module, resolve_targets
from .linear import NF4Linear
from .pack import check_block_size


def _tied_names(model: nn.Module, weight: nn.Parameter, layer: nn.Module) -> list[str]:
    """Qualified names of parameters of other modules that share `weight`'s memory."""
    shared = []
    for owner_name, owner in model.named_modules(remove_duplicate=True):
        if owner is layer:
            continue
        for name, parameter in owner.named_parameters(recurse=False):
            same_memory = (
                parameter.data_ptr() == weight.data_ptr()
                and parameter.device == weight.device
                and parameter.numel() > 0
            )
            if parameter is weight or same_memory:
                shared.append(f"{owner_name}.{name}" if owner_name else name)
    return shared


def _check_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    if isinstance(layer, NF4Linear):
        raise TargetModuleError(f"[quantize_nf4] {name!r} is already an NF4 layer")
    if type(layer) is not nn.Linear:
        raise TargetModuleError(
            f"[quantize_nf4] {name!r} is a {type(layer).__name__}; only torch.nn.Linear itself is "
            "converted"
        )
    device = layer.weight.device
    if device.type == "meta":
        raise QuantizationError(
            f"[quantize_nf4] {name!r} has no values (meta device): load the weights first, or "
            "stream them with load_nf4_safetensors"
        )
    if device.type != "cpu":
        raise QuantizationError(
            f"[quantize_nf4] {name!r} is on {device}: quantise on the CPU, then move the model"
        )
    tied = _tied_names(model, layer.weight, layer)
    if tied:
        raise QuantizationError(
            f"[quantize_nf4] the weight of {name!r} is tied to {', '.join(tied)}: quantising it "
            "would part them; leave it out of target_modules, or untie it first"
        )


def quantize_nf4(
    model: nn.Module,
    target_modules: str | Sequence[str] = ALL_LINEAR,
    block_size: int = 64,
    tile_rows: int = 128,
) -> TargetReport:
    """Replace the targeted linear layers of a model on the CPU by `NF4Linear`, in place.

    target_modules: see `resolve_targets`. Call it before `inject_lora`. Layers shared under several
    names are replaced under all of them.

    Layers are converted one at a time, and each dense weight is released before the next layer is
    read. All targets are checked first (kind, device, tied weights); a weight with NaN or infinite
    values is found when its turn comes, and the layers before it stay converted.

    Raises TargetModuleError for wrong targets and QuantizationError naming the module otherwise.
    """
    from ..lora import LoRALinear

    check_block_size(block_size, "quantize_nf4")
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise TargetModuleError(
            "[quantize_nf4] the model already has LoRA adapters: quantise before inject_lora"
        )
    report = resolve_targets(model, target_modules, operator="quantize_nf4")
    modules = qualified_modules(model)
    layers = {name: modules[name] for name in report.names}
    del modules  # it also holds the aliases, which would keep dense weights alive
    for name, layer in layers.items():
        _check_layer(model, name, layer)
    for name in report.names:
        layer = layers.pop(name)
        assert isinstance(layer, nn.Linear)
        try:
            with torch.no_grad():
                packed = NF4Linear.from_linear(layer, block_size, tile_rows)
        except QuantizationError as error:
            raise QuantizationError(f"[quantize_nf4] {name!r}: {error}") from error
        replace_module(model, layer, packed)
    return report
