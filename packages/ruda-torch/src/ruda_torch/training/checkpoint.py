"""AdamW's state: how it starts, what a checkpoint holds, and the checks before one is loaded."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

# 1: fused_step and max_grad_norm. 2 is reserved for hierarchical statistics, which this build does
# not have and therefore refuses to load.
OPTIONS_VERSION = 1

# Options of `torch.optim.AdamW` that have no kernel here.
REFUSED_OPTIONS = ("amsgrad", "maximize", "differentiable", "capturable")
_SETTINGS = ("lr", "betas", "eps", "weight_decay")


def check_options(fused_step: bool, max_grad_norm: float | None) -> None:
    """The two options of a step, from the constructor or from a checkpoint."""
    if max_grad_norm is None:
        return
    if not fused_step:
        raise ValueError(
            f"[AdamW] max_grad_norm: got {max_grad_norm} with fused_step=False, wanted "
            "fused_step=True: only the fused step knows the norm before it updates"
        )
    if not 0.0 < max_grad_norm < float("inf"):
        raise ValueError(f"[AdamW] max_grad_norm: got {max_grad_norm}, wanted a positive number")


def options_to_save(fused_step: bool, max_grad_norm: float | None) -> dict[str, Any]:
    return {"version": OPTIONS_VERSION, "fused_step": fused_step, "max_grad_norm": max_grad_norm}


def options_to_load(state_dict: dict[str, Any]) -> tuple[bool, float | None] | None:
    """(fused_step, max_grad_norm) of a checkpoint, or None for one that has none."""
    options = state_dict.get("step_options")
    if options is None:
        return None
    if options.get("version") != OPTIONS_VERSION:
        raise ValueError(
            f"[AdamW] step_options of the checkpoint: got version {options.get('version')!r}, "
            f"wanted {OPTIONS_VERSION}; it was written by another version of ruda-torch"
        )
    expected = set(options_to_save(False, None))
    if set(options) != expected:
        raise ValueError(
            f"[AdamW] step_options of the checkpoint: got {sorted(options)}, wanted "
            f"{sorted(expected)}"
        )
    check_options(options["fused_step"], options["max_grad_norm"])
    return options["fused_step"], options["max_grad_norm"]


def fresh_state(parameter: Tensor) -> dict[str, Any]:
    """The state before a parameter's first step, in its memory layout."""
    state: dict[str, Any] = {"step": 0}
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = torch.zeros_like(
            parameter, dtype=torch.float32, memory_format=torch.preserve_format
        )
    if parameter.dtype != torch.float32:
        state["master"] = parameter.detach().to(torch.float32, memory_format=torch.preserve_format)
    return state


def groups_to_load(
    current: list[dict[str, Any]], saved: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The saved groups with this optimiser's parameters in them."""
    if len(current) != len(saved):
        raise ValueError(
            f"[AdamW] param_groups of the checkpoint: got {len(saved)} groups, wanted "
            f"{len(current)}"
        )
    groups = []
    for number, (group, loaded) in enumerate(zip(current, saved)):
        if len(group["params"]) != len(loaded["params"]):
            raise ValueError(
                f"[AdamW] param_groups[{number}] of the checkpoint: got {len(loaded['params'])} "
                f"parameters, wanted {len(group['params'])}"
            )
        missing = [name for name in _SETTINGS if name not in loaded]
        if missing:
            raise ValueError(f"[AdamW] param_groups[{number}] of the checkpoint lacks {missing}")
        refused = [name for name in REFUSED_OPTIONS if loaded.get(name, False)]
        if refused:
            raise ValueError(
                f"[AdamW] param_groups[{number}] of the checkpoint: got {refused} switched on, "
                "wanted none of them; they are not built"
            )
        groups.append({**group, **copy.deepcopy(loaded), "params": group["params"]})
    return groups


def state_to_load(
    parameters: list[Tensor], state_dict: dict[str, Any]
) -> defaultdict[Tensor, dict[str, Any]]:
    """The saved state, copied to the parameters' device and layout; float32 as it was saved."""
    saved = state_dict["state"]
    ids = [key for group in state_dict["param_groups"] for key in group["params"]]
    unknown = sorted(str(key) for key in set(saved) - set(ids))
    if unknown:
        raise ValueError(f"[AdamW] state of the checkpoint: got unknown parameters {unknown}")
    entries = [
        (parameter, key, saved[key]) for key, parameter in zip(ids, parameters) if key in saved
    ]
    for parameter, key, entry in entries:
        _check_entry(parameter, key, entry)
    state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
    for parameter, _, entry in entries:
        own: dict[str, Any] = {"step": int(entry["step"])}
        for name, value in entry.items():
            if name != "step":
                own[name] = torch.empty_like(
                    parameter, dtype=torch.float32, memory_format=torch.preserve_format
                ).copy_(value)
        state[parameter] = own
    return state


def _check_entry(parameter: Tensor, key: Any, entry: dict[str, Any]) -> None:
    expected = {"step", "exp_avg", "exp_avg_sq"}
    if parameter.dtype != torch.float32:
        expected.add("master")
    if set(entry) != expected:
        raise ValueError(
            f"[AdamW] state[{key}] of the checkpoint: got {sorted(entry)}, wanted "
            f"{sorted(expected)} for a parameter of {parameter.dtype}"
        )
    if int(entry["step"]) < 1:
        raise ValueError(f"[AdamW] state[{key}]['step']: got {entry['step']}, wanted 1 or more")
    for name in sorted(expected - {"step"}):
        value = entry[name]
        if tuple(value.shape) != tuple(parameter.shape):
            raise ValueError(
                f"[AdamW] state[{key}][{name!r}] of the checkpoint: got shape {list(value.shape)}, "
                f"wanted {list(parameter.shape)}"
            )
        if value.dtype != torch.float32:
            raise ValueError(
                f"[AdamW] state[{key}][{name!r}] of the checkpoint: got dtype {value.dtype}, "
                "wanted float32"
            )
