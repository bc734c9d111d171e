"""Merging adapters into the weights they adapt."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import AdapterError
from ..quantization import NF4Linear
from ..targets import replace_module
from .inject import lora_modules
from .layer import LoRALinear


def _tied(model: nn.Module, layer: nn.Linear) -> list[str]:
    return [
        f"{owner_name}.{name}"
        for owner_name, owner in model.named_modules()
        if owner is not layer
        for name, parameter in owner.named_parameters(recurse=False)
        if parameter is layer.weight
    ]


def _merged_weight(layer: LoRALinear, dtype: torch.dtype) -> torch.Tensor:
    """base + update, added in float32 (float64 for a float64 base) and rounded once."""
    base = layer.base_layer
    if isinstance(base, NF4Linear):
        dense = base.dequantize()
    else:
        assert isinstance(base, nn.Linear)
        dense = base.weight.detach()
        dense = dense.to(torch.promote_types(dense.dtype, torch.float32))
    return (dense + layer.delta()).to(dtype)


def merge_lora(model: nn.Module, dtype: torch.dtype | None = None) -> list[str]:
    """Add every adapter to its base weight and remove it, in place; returns the layers' names.

    A dense base keeps its `nn.Linear`, parameter and dtype. An NF4 base becomes a dense `nn.Linear`
    with the dequantised weight plus the update in `dtype` (float32 unless given): quantising the
    sum again would lose most of a small update, so no 4-bit merge exists here. The model then needs
    the memory of dense weights.

    dtype: of the layers that were NF4. For a model without NF4 bases it must be None.

    Layers are merged one at a time. Raises AdapterError, naming the layer, for a model without
    adapters, a dense weight tied to another module (the other one would change too), and a sum that
    is not finite in the target dtype; layers before that one stay merged.
    """
    layers = lora_modules(model)
    if not layers:
        raise AdapterError("[merge_lora] the model has no adapters")
    packed = [name for name, layer in layers.items() if isinstance(layer.base_layer, NF4Linear)]
    if dtype is not None and not packed:
        raise AdapterError(
            f"[merge_lora] dtype={dtype} is for NF4 bases, and this model has none: dense weights "
            "keep their dtype"
        )
    for name, layer in layers.items():
        tied = _tied(model, layer.base_layer) if isinstance(layer.base_layer, nn.Linear) else []
        if tied:
            raise AdapterError(
                f"[merge_lora] the weight of {name!r} is tied to {', '.join(tied)}, which would "
                "change too: untie it first"
            )
    for name, layer in layers.items():
        base = layer.base_layer
        target = (dtype or torch.float32) if isinstance(base, NF4Linear) else base.weight.dtype
        with torch.no_grad():
            weight = _merged_weight(layer, target)
            if not bool(torch.isfinite(weight).all()):
                raise AdapterError(
                    f"[merge_lora] the merged weight of {name!r} is not finite in {target}"
                )
            if isinstance(base, NF4Linear):
                merged = _dense_layer(base, weight)
            else:
                base.weight.copy_(weight)
                merged = base
        replace_module(model, layer, merged)
    return list(layers)


def _dense_layer(base: NF4Linear, weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(base.in_features, base.out_features, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if base.bias is not None:
        layer.bias = nn.Parameter(base.bias.detach().to(weight.dtype), requires_grad=False)
    return layer.train(base.training)
