"""RMSNorm's inputs. Each case runs for every dtype it names, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..support import DTYPES, Array

Make = Callable[[np.random.Generator], Array]


def normal(*shape: int, scale: float = 1.0) -> Make:
    return lambda rng: scale * rng.standard_normal(shape)


def near_1449(rng: np.random.Generator) -> Array:
    return 1449.0 + rng.uniform(-0.5, 0.5, (3, 16))


def constant(rng: np.random.Generator) -> Array:
    return np.full((2, 40), 1234.0)


def zero_row(rng: np.random.Generator) -> Array:
    x = rng.standard_normal((3, 24))
    x[1] = 0.0
    return x


def with_value(value: float, shape: tuple[int, int] = (4, 19)) -> Make:
    def make(rng: np.random.Generator) -> Array:
        x = rng.standard_normal(shape)
        x[2, 5] = value
        return x

    return make


def huge(rng: np.random.Generator) -> Array:
    return rng.choice([-1e30, 1e30, 2e30], (3, 50))


def one_huge_value(rng: np.random.Generator) -> Array:
    x = rng.standard_normal((2, 17))
    x[:, 3] = 3e38
    return x


def constant_row(rng: np.random.Generator) -> Array:
    x = rng.standard_normal((3, 40))
    x[1] = 1234.0
    return x


def one_far_value(rng: np.random.Generator) -> Array:
    """A first value far from the others: a shift by it would cost them their digits."""
    x = rng.standard_normal((4, 64))
    x[:, 0] = 3e4
    return x


@dataclass(frozen=True)
class Case:
    name: str
    x: Make
    epsilon: float = 1e-5
    weight: Make | None = None
    dtypes: tuple[str, ...] = tuple(DTYPES)


WIDE_RANGE = ("float32", "bfloat16")  # float16 ends at 65504

CASES = [
    Case("one_element", normal(1, 1), weight=normal(1)),
    Case("below_a_vector", normal(3, 7), weight=normal(7)),
    Case("one_vector", normal(5, 8)),
    Case("no_weight", normal(4, 65)),
    Case("model_width", normal(2, 3, 576), 1e-5, normal(576)),
    Case("odd_width", normal(33, 101), 1e-6, normal(101)),
    Case("many_rows", normal(1000, 33), 1e-5, normal(33)),
    Case("wide_row", normal(2, 9001), 1e-5, normal(9001)),
    Case("one_dimension", normal(300), 1e-5, normal(300)),
    Case("large_epsilon", normal(3, 20, scale=0.1), 10.0, normal(20)),
    Case("near_1449", near_1449, 1e-5, normal(16)),
    Case("constant_1234", constant, 1e-5, normal(40)),
    Case("zero_row_small_epsilon", zero_row, 1e-12, normal(24), ("float32", "bfloat16")),
    Case("zero_row", zero_row, 1e-6, normal(24)),
    Case("weight_zero", normal(6, 30), 1e-5, lambda rng: np.zeros(30)),
    Case("huge_1e30", huge, 1e-5, normal(50), WIDE_RANGE),
    Case("one_value_at_the_limit", one_huge_value, 1e-5, normal(17), WIDE_RANGE),
    Case("tiny_1e-30", normal(3, 40, scale=1e-30), 1e-36, normal(40), WIDE_RANGE),
    Case("nan", with_value(np.nan), 1e-5, normal(19)),
    Case("infinity", with_value(np.inf), 1e-5, normal(19)),
    Case("no_rows", normal(0, 16), 1e-5, normal(16)),
]

# What LayerNorm has beyond RMSNorm's cases: the mean.
LAYER_CASES = [
    Case("seven", normal(3, 7, scale=3.0), 1e-5, normal(7)),
    Case("nine", normal(3, 9), 1e-5, normal(9)),
    Case("wide_2048", normal(3, 2048), 1e-5, normal(2048)),
    Case("wide_4097", normal(3, 4097), 1e-5, normal(4097)),
    Case("constant_row", constant_row, 1e-5, normal(40)),
    Case("one_far_value", one_far_value, 1e-5, normal(64)),
    Case("far_from_zero", lambda rng: 100.0 + rng.standard_normal((5, 576)), 1e-5, normal(576)),
]
