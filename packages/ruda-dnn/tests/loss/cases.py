"""Inputs of the linear cross entropy: sizes, which rows are ignored, and the odd biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..support import Array

IGNORE = -100


@dataclass(frozen=True)
class Case:
    name: str
    rows: int
    width: int
    classes: int
    bias: str = "none"  # none, normal, one_class, half_masked
    ignored: str = "none"  # none, half, all, ends
    token_chunk: int = 0
    hidden_scale: float = 1.0

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        hidden = self.hidden_scale * rng.standard_normal((self.rows, self.width))
        head = rng.standard_normal((self.classes, self.width)) / np.sqrt(self.width)
        target = rng.integers(0, self.classes, self.rows)
        if self.ignored == "half":
            target[::2] = IGNORE
        elif self.ignored == "ends":
            target[[0, -1]] = IGNORE
        elif self.ignored == "all":
            target[:] = IGNORE
        bias: Array | None = None
        if self.bias == "normal":
            bias = rng.standard_normal(self.classes)
        elif self.bias == "one_class":  # whole tiles of the vocabulary are -inf
            bias = np.full(self.classes, -np.inf)
            bias[self.classes // 2] = 0.0
            target[target != IGNORE] = self.classes // 2
        elif self.bias == "half_masked":
            bias = np.zeros(self.classes)
            bias[::2] = -np.inf
            target[target != IGNORE] |= 1
            target = np.minimum(target, self.classes - 1 - (self.classes % 2))
        return {"hidden": hidden, "head": head, "bias": bias, "target": target}


CASES = [
    Case("one_of_each", 1, 1, 1),
    Case("two_classes", 3, 5, 2, bias="normal"),
    Case("plain", 17, 24, 101),
    Case("bias", 17, 24, 101, bias="normal"),
    Case("half_ignored", 20, 16, 63, bias="normal", ignored="half"),
    Case("ends_ignored", 20, 16, 63, ignored="ends", token_chunk=6),
    Case("all_ignored", 9, 16, 30, bias="normal", ignored="all"),
    Case("no_rows", 0, 8, 10, bias="normal"),
    Case("chunk_edge", 12, 8, 40, token_chunk=4),
    Case("chunk_of_one", 7, 8, 40, token_chunk=1, ignored="ends"),
    Case("chunk_larger_than_rows", 7, 8, 40, token_chunk=1000),
    Case("half_masked", 15, 12, 80, bias="half_masked"),
    Case("one_finite_class", 4, 4, 100_000, bias="one_class"),
    Case("large_vocabulary", 6, 32, 50_001, token_chunk=4),
    Case("two_head_tiles", 60, 4200, 600),
    Case("sharp", 10, 16, 50, hidden_scale=40.0),
]
