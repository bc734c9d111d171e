"""What loading did, for whoever prints or checks it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

from ..targets import TargetReport


@dataclass(frozen=True)
class LoadReport:
    """What was loaded, and how.

    targets: what the target modules matched; None when none were asked for.
    quantized: qualified names of the layers that are NF4 now.
    ties: groups of state-dict names that are one tensor, the name found in the file first.
    skipped: tensors in the file that the model does not use, with the reason.
    computed: buffers that are not in the file and were computed from the config.
    elements: number of weights by storage: `nf4`, `float32`, `bfloat16`, … (tied ones once).
    stored: number of tensors by their type in the file: `Q4_1`, `F32`, …
    nbytes: bytes of all parameters and buffers of the loaded model.
    cached: whether the NF4 weights came from the cache.
    """

    targets: TargetReport | None = None
    quantized: tuple[str, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    elements: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    nbytes: int = 0
    cached: bool = False

    @property
    def parameters(self) -> int:
        """Number of weights, packed ones included."""
        return sum(self.elements.values())

    def lines(self) -> list[str]:
        """A few lines for a terminal."""
        text = [
            "weights: "
            + ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.elements.items()))
            + f" ({self.nbytes / 2**20:.1f} MiB)",
            "stored as: "
            + ", ".join(f"{count} {kind}" for kind, count in sorted(self.stored.items())),
        ]
        if self.targets is not None:
            text.append(f"targets: {self.targets}")
        text += [f"tied: {' = '.join(names)}" for names in self.ties]
        text += [f"skipped: {name} ({reason})" for name, reason in self.skipped.items()]
        return text


def count_elements(model: nn.Module) -> tuple[dict[str, int], int]:
    """(weights by storage, bytes of all parameters and buffers) of a loaded model."""
    from ..quantization import NF4Linear

    elements: Counter[str] = Counter()
    tensors: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if isinstance(module, NF4Linear):
            elements["nf4"] += module.in_features * module.out_features
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensors.setdefault(id(tensor), tensor)
    for tensor in tensors.values():
        if isinstance(tensor, nn.Parameter):
            elements[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return dict(elements), sum(t.numel() * t.element_size() for t in tensors.values())
