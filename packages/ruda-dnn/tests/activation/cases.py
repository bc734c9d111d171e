"""silu_mul's inputs: gate and up by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..support import Array


def _normal(*shape: int, scale: float = 1.0) -> Callable[[np.random.Generator], Array]:
    return lambda rng: scale * rng.standard_normal(shape)


def _edges(rng: np.random.Generator) -> Array:
    """Where e^-x overflows, vanishes or is exactly one."""
    return np.array([0.0, -0.0, 88.0, 89.0, -88.0, -89.0, -100.0, 104.0, 1e4, -1e4, 6e4, -6e4, 20])


def _special(rng: np.random.Generator) -> Array:
    return np.array([np.nan, np.inf, -np.inf, 1.0, np.nan, np.inf, 2.0, -1.0, 0.0])


@dataclass(frozen=True)
class Case:
    name: str
    gate: Callable[[np.random.Generator], Array]


CASES = [
    Case("one_element", _normal(1)),
    Case("below_a_vector", _normal(7)),
    Case("model_width", _normal(2, 5, 1536)),
    Case("wide_values", _normal(9, 111, scale=20.0)),
    Case("no_dimensions", _normal()),
    Case("empty", _normal(0, 4)),
    Case("many", _normal(300, 333)),
    Case("edges", _edges),
    Case("special", _special),
]
