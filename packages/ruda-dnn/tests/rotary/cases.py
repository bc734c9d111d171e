"""Rotary's inputs: shape of x, width of the tables, and their batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..support import Array


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, int, int, int]
    rotated: int
    table_batch: int = 1
    special: float | None = None

    def x(self, rng: np.random.Generator) -> Array:
        x = rng.standard_normal(self.shape)
        if self.special is not None:
            x[0, 1, 0, 3] = self.special
        return x

    def tables(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Both halves of each table differ, so that a kernel that mixes them up is seen."""
        angle = rng.uniform(-4.0, 4.0, (2, self.table_batch, self.shape[1], self.rotated))
        return np.cos(angle[0]), np.sin(angle[1])


CASES = [
    Case("smallest", (1, 1, 1, 2), 2),
    Case("below_a_vector", (2, 3, 2, 6), 6),
    Case("one_vector_a_half", (1, 4, 2, 16), 16),
    Case("tail", (2, 5, 3, 22), 22, table_batch=2),
    Case("model", (1, 33, 9, 64), 64),
    Case("batches_with_own_tables", (3, 7, 2, 32), 32, table_batch=3),
    Case("partial", (2, 6, 3, 32), 8),
    Case("partial_odd_rest", (1, 4, 2, 13), 10),
    Case("wide_head", (1, 3, 2, 4098), 4098),
    Case("nan", (1, 3, 2, 16), 16, special=float("nan")),
    Case("infinity", (1, 3, 2, 16), 16, special=float("inf")),
    Case("no_tokens", (2, 0, 3, 8), 8),
    Case("no_heads", (2, 3, 0, 8), 8),
]
