"""Buffers that no file holds: computed again from the config of a model built on meta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from ..errors import ModelFileError

# Buffers are filled with this before they are computed, so that one that was not is noticed.
_UNSET_INTEGER = -(2**31) + 7


def compute_buffers(
    model: nn.Module,
    names: Iterable[str],
    device: torch.device,
    buffer_dtypes: Mapping[str, torch.dtype],
    operator: str,
) -> tuple[str, ...]:
    """Give values to the named meta buffers and move them to `device`.

    transformers' models recompute such buffers (rotary frequencies, scales of embeddings) in the
    `_init_weights` of the model that owns them, which is called for exactly the modules that need
    it, while their parameters are still on the meta device. Raises `ModelFileError` naming the
    buffers that stay without values.
    """
    modules = dict(model.named_modules())
    by_module: dict[str, list[str]] = {}
    for name in names:
        owner, _, leaf = name.rpartition(".")
        by_module.setdefault(owner, []).append(leaf)
    unset: list[str] = []
    for owner, leaves in by_module.items():
        module = modules[owner]
        for leaf in leaves:
            module._buffers[leaf] = _unset_like(module._buffers[leaf])
        initialise = _initialiser(modules, owner)
        if initialise is not None:
            with torch.no_grad(), torch.device("cpu"):
                initialise(module)
        for leaf in leaves:
            name = f"{owner}.{leaf}" if owner else leaf
            value = module._buffers[leaf]
            if value is None or value.is_meta or _has_unset(value):
                unset.append(name)
                continue
            module._buffers[leaf] = value.to(device, buffer_dtypes.get(name, value.dtype))
    if unset:
        raise ModelFileError(
            f"[{operator}] these buffers are not in the file and {type(model).__name__} does not "
            f"compute them: {', '.join(unset)}. Construct the model with real values for them "
            "(only its parameters have to be on the meta device)."
        )
    return tuple(f"{o}.{leaf}" if o else leaf for o, leaves in by_module.items() for leaf in leaves)


def _initialiser(
    modules: Mapping[str, nn.Module], owner: str
) -> Callable[[nn.Module], None] | None:
    """`_init_weights` of the innermost model around module `owner`, or None."""
    while True:
        found = getattr(modules[owner], "_init_weights", None)
        if callable(found):
            return found
        if not owner:
            return None
        owner = owner.rpartition(".")[0]


def _unset_like(buffer: torch.Tensor | None) -> torch.Tensor:
    assert buffer is not None
    if buffer.is_floating_point() or buffer.is_complex():
        return torch.full(buffer.shape, float("nan"), dtype=buffer.dtype, device="cpu")
    if buffer.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16):
        # too narrow for a mark: stays on the meta device, hence an error unless it is replaced
        return buffer
    return torch.full(buffer.shape, _UNSET_INTEGER, dtype=buffer.dtype, device="cpu")


def _has_unset(value: torch.Tensor) -> bool:
    if value.is_floating_point() or value.is_complex():
        return bool(torch.isnan(value).any())
    return bool((value == _UNSET_INTEGER).any())
