"""Grids of the random kernels.

Outputs are contiguous; an element's numbers depend on its index alone (README.md). ``first`` is the
counter block of element 0. Nothing is refused: every count of elements up to 2^31 programs.
"""

from __future__ import annotations

import math

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.random.kernels"
_FLOATING = "*fp32|fp16|bf16|fp64"
_RANGE = {"numel": "i64", "seed": "i64", "first": "i64"}
_BLOCK = {"BLOCK": "constexpr"}

UNIFORM = Definition(
    "random.uniform",
    f"{_KERNELS}:uniform",
    {"y": _FLOATING, **_RANGE, "low": "fp64", "high": "fp64", "extent": "fp64", **_BLOCK},
)
EXPONENTIAL = Definition(
    "random.exponential",
    f"{_KERNELS}:exponential",
    {"y": _FLOATING, **_RANGE, "scale": "fp64", "least": "fp64", **_BLOCK},
)
CAUCHY = Definition(
    "random.cauchy",
    f"{_KERNELS}:cauchy",
    {"y": _FLOATING, **_RANGE, "median": "fp64", "sigma": "fp64", **_BLOCK},
)
NORMAL = Definition(
    "random.normal",
    f"{_KERNELS}:normal",
    {"y": _FLOATING, **_RANGE, "mean": "fp64", "std": "fp64", **_BLOCK},
)
INTEGERS = Definition(
    "random.integers",
    f"{_KERNELS}:integers",
    {"y": "*i64|i32|u8", **_RANGE, "extent": "i64", "base": "i64", **_BLOCK},
)
BERNOULLI = Definition(
    "random.bernoulli",
    f"{_KERNELS}:bernoulli",
    {"y": "*fp32|fp16|bf16|u8", **_RANGE, "threshold": "i64", **_BLOCK},
)
BERNOULLI_EACH = Definition(
    "random.bernoulli_each",
    f"{_KERNELS}:bernoulli_each",
    {"y": "*u8", "p": _FLOATING, "wrong": "*i32", **_RANGE, **_BLOCK},
)
DROPOUT = Definition(
    "random.dropout",
    f"{_KERNELS}:dropout",
    {"x": _FLOATING, "y": _FLOATING, "mask": "*u8", **_RANGE, "threshold": "i64", "scale": "fp64",
     **_BLOCK},
)  # fmt: skip

BLOCK = 256
"""Counter blocks of a program: 1024 elements of one word, 512 of two."""


def programs(numel: int, words: int) -> tuple[int]:
    """The grid for elements that own that many words each."""
    return (ceil_div(numel * words, 4 * BLOCK),)


def _words(y: View) -> int:
    return 2 if y.dtype == "float64" else 1


def uniform(
    y: View, seed: int, first: int, low: float, high: float, extent: float
) -> list[Launch]:  # fmt: skip
    """Numbers in [low, high): both in y's dtype, ``extent`` their distance in its arithmetic.

    An empty range gives ``low`` alone.
    """
    high = math.inf if low == high else high
    grid = programs(y.size, _words(y))
    return [UNIFORM(grid, y=y, numel=y.size, seed=seed, first=first, low=low, high=high,
                    extent=extent, BLOCK=BLOCK)]  # fmt: skip


def exponential(y: View, seed: int, first: int, scale: float, least: float) -> list[Launch]:
    """``scale * log(u)`` with u in (0, 1), ``least`` or more."""
    grid = programs(y.size, _words(y))
    return [EXPONENTIAL(grid, y=y, numel=y.size, seed=seed, first=first, scale=scale, least=least,
                        BLOCK=BLOCK)]  # fmt: skip


def cauchy(y: View, seed: int, first: int, median: float, sigma: float) -> list[Launch]:
    """``median + sigma * tan(pi * (u - 1/2))`` with u in (0, 1)."""
    grid = programs(y.size, _words(y))
    return [CAUCHY(grid, y=y, numel=y.size, seed=seed, first=first, median=median, sigma=sigma,
                   BLOCK=BLOCK)]  # fmt: skip


def normal(y: View, seed: int, first: int, mean: float, std: float) -> list[Launch]:
    """Normal numbers, two from two."""
    grid = programs(y.size, _words(y))
    return [NORMAL(grid, y=y, numel=y.size, seed=seed, first=first, mean=mean, std=std,
                   BLOCK=BLOCK)]  # fmt: skip


def integers(y: View, seed: int, first: int, extent: int, base: int) -> list[Launch]:
    """``base`` to ``base + extent - 1``; every 64-bit number for the extent 0."""
    return [INTEGERS(programs(y.size, 2), y=y, numel=y.size, seed=seed, first=first,
                     extent=extent, base=base, BLOCK=BLOCK)]  # fmt: skip


def bernoulli(y: View, seed: int, first: int, threshold: int) -> list[Launch]:
    """1 where an element's word is below ``threshold``, else 0."""
    return [BERNOULLI(programs(y.size, 1), y=y, numel=y.size, seed=seed, first=first,
                      threshold=threshold, BLOCK=BLOCK)]  # fmt: skip


def bernoulli_each(y: View, p: View, wrong: View, seed: int, first: int) -> list[Launch]:
    """The same with a probability for every element; ``wrong[0]`` becomes 1 where one is none."""
    return [BERNOULLI_EACH(programs(y.size, 1), y=y, p=p, wrong=wrong, numel=y.size, seed=seed,
                           first=first, BLOCK=BLOCK)]  # fmt: skip


def dropout(
    x: View, y: View, mask: View, seed: int, first: int, threshold: int, scale: float
) -> list[Launch]:  # fmt: skip
    """``y = x * scale`` and mask 1 where an element's word is below ``threshold``, else 0."""
    return [DROPOUT(programs(y.size, 1), x=x, y=y, mask=mask, numel=y.size, seed=seed, first=first,
                    threshold=threshold, scale=scale, BLOCK=BLOCK)]  # fmt: skip


def bundle() -> list[Specialisation]:
    """What a bundle must contain: results that ruda's allocator aligned, and views that are not."""
    launches: list[Launch] = []
    for pointer in (0, 8):
        for dtype in ("float32", "float16", "bfloat16", "float64"):
            y = contiguous_view(pointer, dtype, (64,))
            launches += uniform(y, 1, 1, 0.0, 1.0, 1.0)
            launches += exponential(y, 1, 1, -1.0, 1e-45)
            launches += normal(y, 1, 1, 0.0, 1.0)
            launches += cauchy(y, 1, 1, 0.0, 1.0)
            mask = contiguous_view(pointer, "bool", (64,))
            launches += dropout(y, y, mask, 1, 1, 1, 1.0)
            wrong = contiguous_view(0, "int32", (1,))
            launches += bernoulli_each(mask, y, wrong, 1, 1)
        for dtype in ("float32", "float16", "bfloat16", "bool"):
            launches += bernoulli(contiguous_view(pointer, dtype, (64,)), 1, 1, 1)
        for dtype in ("int64", "int32", "uint8"):
            launches += integers(contiguous_view(pointer, dtype, (64,)), 1, 1, 5, 0)
    return specialisations(launches)
