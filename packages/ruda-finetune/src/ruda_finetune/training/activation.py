"""Activation checkpointing of chosen modules, without a trace in state-dict keys."""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import FinetuneError


def _checkpointed_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    inner, preserve = vars(self)["_ruda_checkpoint"]
    call = functools.partial(type(self).forward, self) if inner is None else inner
    if not torch.is_grad_enabled():
        return call(*args, **kwargs)
    # checkpoint() finds the device whose random state it keeps by looking at positional arguments
    # only; transformers passes hidden states by keyword in places.
    names, count = list(kwargs), len(args)

    def run(*values: Any) -> Any:
        return call(*values[:count], **dict(zip(names, values[count:])))

    values = (*args, *kwargs.values())
    return checkpoint(run, *values, use_reentrant=False, preserve_rng_state=preserve)


def activation_checkpoint_modules(
    model: nn.Module, paths: Sequence[str], preserve_rng_state: bool = True
) -> list[str]:
    """Recompute the named modules' activations in backward instead of keeping them.

    Args:
        model: the module that the paths start from.
        paths: qualified names; one that ends in `.*` means every direct child
            (`"layers.*"`: all decoder layers). Each must name a module.
        preserve_rng_state: dropout draws the same masks again in the second pass.

    Only the modules' `forward` changes: classes, parameters and state-dict keys stay. With
    gradients off nothing is checkpointed. Returns the names of the modules, in order.

    Raises `FinetuneError` for a name that does not exist (with near names), for an empty list, and
    for modules that are checkpointed already or lie inside one another.
    """
    chosen: dict[str, nn.Module] = {}
    for path in paths:
        chosen.update(_find(model, path))
    if not chosen:
        raise FinetuneError("[activation_checkpoint_modules] no modules named: got an empty list")
    for name, module in chosen.items():
        inside = [other for other in chosen if other and name.startswith(other + ".")]
        if inside:
            raise FinetuneError(
                f"[activation_checkpoint_modules] {name} lies inside {inside[0]}: name one of them"
            )
        if any("_ruda_checkpoint" in vars(child) for child in module.modules()):
            raise FinetuneError(f"[activation_checkpoint_modules] {name} is checkpointed already")
    for module in {id(module): module for module in chosen.values()}.values():
        # A forward set on the instance (by a library that patches models) stays in use.
        vars(module)["_ruda_checkpoint"] = (vars(module).get("forward"), preserve_rng_state)
        module.forward = types.MethodType(_checkpointed_forward, module)  # type: ignore[method-assign]
    return list(chosen)


def remove_activation_checkpoints(model: nn.Module) -> int:
    """Undo `activation_checkpoint_modules` everywhere in a model; the number of modules undone."""
    count = 0
    for module in model.modules():
        if "_ruda_checkpoint" in vars(module):
            inner, _ = vars(module).pop("_ruda_checkpoint")
            vars(module).pop("forward")
            if inner is not None:
                module.forward = inner  # type: ignore[method-assign]
            count += 1
    return count


def _find(model: nn.Module, path: str) -> dict[str, nn.Module]:
    modules = dict(model.named_modules(remove_duplicate=False))
    parent = path.removesuffix(".*")
    module = modules.get(parent)
    if module is None or (parent == "" and path != ".*"):
        near = difflib.get_close_matches(parent, modules, n=3)
        hint = f"; near names: {', '.join(near)}" if near else ""
        raise FinetuneError(f"[activation_checkpoint_modules] no module {parent!r}{hint}")
    if parent == path:
        return {path: module}
    children = {f"{parent}.{name}": child for name, child in module.named_children()}
    if not children:
        raise FinetuneError(f"[activation_checkpoint_modules] {parent!r} has no children")
    return children


def decoder_layers(backbone: nn.Module) -> str:
    """The path of the backbone's repeated layers: its longest `ModuleList`, the outermost first."""
    lists = [
        (name, module)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    ]
    if not lists:
        raise FinetuneError(
            f"[CausalLMFinetuner] {type(backbone).__name__} has no list of layers to checkpoint: "
            "pass checkpoint_modules=[…] or activation_checkpointing=False"
        )
    name, _ = max(lists, key=lambda entry: (len(entry[1]), -entry[0].count(".")))
    return f"{name}.*"
