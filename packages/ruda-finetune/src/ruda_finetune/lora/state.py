"""The adapters of a model as a dictionary of tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..errors import AdapterError
from ..targets import COMPILE_PREFIX, near_names
from .inject import lora_modules

_LISTED = 8  # names shown in an error before it says how many more there are


def adapter_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The adapter tensors of a model, detached, in model order; they share memory with it.

    Keys are `<qualified name>.lora_A.weight` ([rank, in]) and `.lora_B.weight` ([out, rank]),
    without any `_orig_mod.` of torch.compile. Raises AdapterError if there are no adapters.
    """
    state = {name: parameter.detach() for name, parameter in _parameters(model).items()}
    if not state:
        raise AdapterError("[adapter_state_dict] the model has no adapters: call inject_lora first")
    return state


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    found: dict[str, nn.Parameter] = {}
    for name, layer in lora_modules(model).items():
        prefix = f"{name}." if name else ""
        found[f"{prefix}lora_A.weight"] = layer.lora_A
        found[f"{prefix}lora_B.weight"] = layer.lora_B
    return found


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def check_adapter_tensors(
    state: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], operator: str
) -> None:
    """Raise AdapterError unless `state` has exactly the keys and shapes wanted, all floating."""
    problems = []
    compiled = [key for key in state if COMPILE_PREFIX in key]
    if compiled:
        problems.append(
            f"keys with torch.compile's prefix {COMPILE_PREFIX!r}: {_listing(compiled)} "
            "(save the model that was handed to torch.compile, or strip the prefix)"
        )
    missing = [key for key in shapes if key not in state]
    unexpected = [key for key in state if key not in shapes and key not in compiled]
    if missing:
        problems.append(f"missing: {_listing(missing)}")
    if unexpected:
        near = near_names(unexpected[0], missing) if missing else []
        hint = f" (near names: {', '.join(near)})" if near else ""
        problems.append(f"unexpected: {_listing(unexpected)}{hint}")
    for key, shape in shapes.items():
        tensor = state.get(key)
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            problems.append(f"{key} is no floating tensor: got {kind}")
        elif tuple(tensor.shape) != tuple(shape):
            problems.append(f"{key} has shape {list(tensor.shape)}, wanted {list(shape)}")
    if problems:
        more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise AdapterError(
            f"[{operator}] the adapter does not fit the model, nothing was loaded: "
            + "; ".join(problems[:_LISTED])
            + more
        )


def load_adapter_state_dict(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Copy adapter tensors into a model that has adapters, in place.

    The whole dictionary is checked before anything is copied: a missing, unexpected or misshaped
    tensor is an AdapterError that names it. Values are cast to the adapters' dtype.
    """
    parameters = _parameters(model)
    if not parameters:
        raise AdapterError(
            "[load_adapter_state_dict] the model has no adapters: call inject_lora first"
        )
    shapes = {key: tuple(parameter.shape) for key, parameter in parameters.items()}
    check_adapter_tensors(state, shapes, "load_adapter_state_dict")
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(state[key].to(device=parameter.device, dtype=parameter.dtype))
