"""Softmax's inputs. Each case runs for every dtype, both operations, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..support import Array

Make = Callable[[np.random.Generator], Array]


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Make:
    return lambda rng: shift + scale * rng.standard_normal(shape)


def with_value(value: float, shape: tuple[int, ...]) -> Make:
    def make(rng: np.random.Generator) -> Array:
        x = rng.standard_normal(shape)
        x[(1,) * len(shape)] = value
        return x

    return make


def masked(rng: np.random.Generator) -> Array:
    """Causal masks: -inf above the diagonal."""
    x = rng.standard_normal((2, 33, 33))
    return np.where(np.tril(np.ones((33, 33), bool)), x, -np.inf)


def masked_row(rng: np.random.Generator) -> Array:
    x = rng.standard_normal((4, 11))
    x[2] = -np.inf
    return x


@dataclass(frozen=True)
class Case:
    name: str
    x: Make
    axis: int = -1


CASES = [
    Case("one_element", normal(1)),
    Case("one_column", normal(5, 1)),
    Case("below_a_vector", normal(3, 7)),
    Case("one_vector", normal(3, 8)),
    Case("above_a_vector", normal(3, 9)),
    Case("model_width", normal(2, 5, 576)),
    Case("odd_wide", normal(3, 4097)),
    Case("longer_than_kept", normal(2, 8195)),
    Case("many_rows", normal(1500, 33)),
    Case("wide_values", normal(7, 65, scale=30.0)),
    Case("far_from_zero", normal(7, 65, shift=1000.0)),
    Case("first_axis", normal(7, 40), 0),
    Case("middle_axis", normal(3, 17, 5), 1),
    Case("middle_axis_blocks", normal(2, 9, 150), -2),
    Case("first_of_three", normal(6, 3, 70), 0),
    Case("before_ones", normal(4, 21, 1, 1), 1),
    Case("causal", masked),
    Case("causal_columns", masked, 1),
    Case("masked_row", masked_row),
    Case("masked_column", lambda rng: masked_row(rng).T.copy(), 0),
    Case("nan", with_value(np.nan, (4, 19))),
    Case("nan_columns", with_value(np.nan, (4, 19)), 0),
    Case("infinity", with_value(np.inf, (4, 19))),
    Case("infinity_columns", with_value(np.inf, (4, 19)), 0),
    Case("minus_infinity", with_value(-np.inf, (4, 19))),
    Case("no_rows", normal(0, 16)),
    Case("empty_axis", normal(3, 0)),
    Case("empty_axis_columns", normal(0, 3), 0),
]
