"""What a checkpoint of a run holds, and putting it back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointError
from .checkpoint import to_cpu
from .rng import rng_state, set_rng_state

_MISSING = object()


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> parameter of everything that is trained, each shared parameter once."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def model_device(model: nn.Module) -> torch.device:
    """The device of what is trained; `CheckpointError` when nothing is."""
    for parameter in trainable_parameters(model).values():
        return parameter.device
    raise CheckpointError(
        f"[finetune_state_dict] {type(model).__name__} has no trainable parameter: inject adapters "
        "first"
    )


def finetune_state_dict(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any = None,
    scheduler: Any = None,
    data: Any = None,
) -> dict[str, Any]:
    """Everything a run needs to go on exactly: copies in CPU memory, plain values and tensors only.

    `model` (trainable parameters by name, never the frozen base), `optimizer`, `scaler`,
    `scheduler`, `data` (the cursor of a `TrainingBatches`) and `rng`. Only between steps: gradients
    that are not cleared are a `CheckpointError`, since they would be lost.
    """
    parameters = trainable_parameters(model)
    device = model_device(model)
    pending = [name for name, parameter in parameters.items() if parameter.grad is not None]
    if pending:
        raise CheckpointError(
            f"[finetune_state_dict] {len(pending)} gradients are not cleared ({pending[0]}, …): "
            "save after optimizer.zero_grad()"
        )
    state = {"model": to_cpu(parameters), "optimizer": to_cpu(optimizer.state_dict())}
    for name, part in (("scaler", scaler), ("scheduler", scheduler), ("data", data)):
        state[name] = None if part is None else to_cpu(part.state_dict())
    return {**state, "rng": rng_state(device)}


def load_finetune_state_dict(
    state: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any = None,
    scheduler: Any = None,
    data: Any = None,
) -> list[str]:
    """Put back what `finetune_state_dict` took; everything is checked before anything changes.

    Returns, in words, what cannot be restored here (the random state of another device). Raises
    `CheckpointError` that names the first tensors that do not fit, or the part (scaler, scheduler,
    data) that one side has and the other lacks.
    """
    parameters = trainable_parameters(model)
    _check_tensors(state["model"], parameters)
    _check_groups(state["optimizer"], optimizer)
    parts = {"scaler": scaler, "scheduler": scheduler, "data": data}
    for name, part in parts.items():
        if (state.get(name) is None) != (part is None):
            has, lacks = (
                ("this run", "the checkpoint")
                if part is not None
                else ("the checkpoint", "this run")
            )
            raise CheckpointError(f"[resume] {has} has a {name} but {lacks} has none")
        if part is not None and hasattr(part, "check_state_dict"):
            part.check_state_dict(state[name])
    device = model_device(model)
    optimizer.load_state_dict(to_cpu(state["optimizer"]))  # may refuse: before anything else moves
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(state[name])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["model"][name])
            parameter.grad = None
    return set_rng_state(state["rng"], device)


def _some(names: list[str]) -> str:
    """How many names, and the first of them."""
    return f"{len(names)} ({names[0]}, …)" if len(names) > 1 else f"{len(names)} {names}"


def _check_tensors(saved: Mapping[str, torch.Tensor], here: Mapping[str, nn.Parameter]) -> None:
    missing = [name for name in here if name not in saved]
    surplus = [name for name in saved if name not in here]
    if missing or surplus:
        raise CheckpointError(
            f"[resume] the trained tensors differ: {_some(missing)} not in the checkpoint, "
            f"{_some(surplus)} in the checkpoint only. Target modules must be those of the "
            "checkpoint's run"
        )
    for name, parameter in here.items():
        tensor = saved[name]
        if tensor.shape != parameter.shape:
            hint = ""
            if "lora_" in name:
                rank = tensor.dim() - 1 if "lora_B" in name else 0
                hint = f" (rank {tensor.shape[rank]} there, {parameter.shape[rank]} here)"
            raise CheckpointError(
                f"[resume] {name} has shape {list(tensor.shape)} in the checkpoint and "
                f"{list(parameter.shape)} in this run{hint}"
            )
        if tensor.dtype != parameter.dtype:
            raise CheckpointError(
                f"[resume] {name} has dtype {tensor.dtype} in the checkpoint and "
                f"{parameter.dtype} in this run"
            )


def _check_groups(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    theirs = [len(group["params"]) for group in saved["param_groups"]]
    ours = [len(group["params"]) for group in optimizer.param_groups]
    if theirs != ours:
        raise CheckpointError(
            f"[resume] the optimiser's parameter groups differ: sizes {theirs} in the checkpoint, "
            f"{ours} in this run"
        )


def optimizer_options(optimizer: torch.optim.Optimizer, scheduled: bool) -> dict[str, Any]:
    """The optimiser's class and settings, for comparing runs.

    The learning rate belongs to them only where no schedule moves it.
    """
    left_out = {"params", "lr" if scheduled else "initial_lr"}
    package = type(optimizer).__module__.partition(".")[0]
    options: dict[str, Any] = {
        "class": f"{package}.{type(optimizer).__name__}",
        "fused_step": bool(getattr(optimizer, "fused_step", False)),
    }
    for number, group in enumerate(optimizer.param_groups):
        options[f"group {number}"] = {
            key: plain(value) for key, value in group.items() if key not in left_out
        }
    return options


def option_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """`differences` of two `optimizer_options`.

    A setting that only one side knows came or went with a version of torch, and is left out.
    """
    found = []
    for name in ("class", "fused_step"):
        found += differences(theirs.get(name), ours[name], f"optimizer.{name}")
    for name in (name for name in ours if name.startswith("group ") and name in theirs):
        shared = [key for key in ours[name] if key in theirs[name]]
        for key in shared:
            found += differences(theirs[name][key], ours[name][key], f"optimizer.{name}.{key}")
    return found


def plain(value: Any) -> Any:
    """`value` in JSON's types where it has a form in them; its text otherwise."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        single = isinstance(value, torch.Tensor) and value.numel() == 1
        return value.item() if single else str(value)


def differences(theirs: Any, ours: Any, name: str = "") -> list[str]:
    """Every field in which two nested configurations differ: "name: checkpoint a, this run b"."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        return [
            line
            for key in keys
            for line in differences(
                theirs.get(key, _MISSING), ours.get(key, _MISSING), f"{name}.{key}" if name else key
            )
        ]
    if theirs == ours:
        return []
    texts = ["absent" if value is _MISSING else repr(value) for value in (theirs, ours)]
    return [f"{name}: checkpoint {texts[0]}, this run {texts[1]}"]
