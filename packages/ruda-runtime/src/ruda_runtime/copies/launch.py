"""Grids of the copy kernel; native/cuda/copies.cpp launches it in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

RANK = 6
BLOCK = 1024
_ITEMS = "*i8|i16|i32|i64"

GATHER = Definition(
    "copies.gather",
    "ruda_runtime.copies.kernels:gather",
    {
        "source": _ITEMS,
        "target": _ITEMS,
        "count": "i32",
        **{f"size_{axis}": "i32" for axis in range(1, RANK)},
        **{f"stride_{axis}": "i64" for axis in range(RANK)},
        "RANK": "constexpr",
        "BLOCK": "constexpr",
    },
)


def gather(source: View, target: View) -> list[Launch]:
    """The elements of a view of at most six dimensions, to row-major memory.

    The dtype is an integer of the elements' size; a view has at most 2**31 - BLOCK of them.
    """
    if source.size == 0:
        return []
    sizes, strides = _padded(source.shape, 1), _padded(source.strides, 0)
    return [
        GATHER(
            (ceil_div(source.size, BLOCK),),
            source=source,
            target=target,
            count=source.size,
            **{f"size_{axis}": sizes[axis] for axis in range(1, RANK)},
            **{f"stride_{axis}": strides[axis] for axis in range(RANK)},
            RANK=3 if len(source.shape) <= 3 else RANK,
            BLOCK=BLOCK,
        )
    ]


def _padded(values: Sequence[int], filling: int) -> list[int]:
    return [filling] * (RANK - len(values)) + list(values)


def bundle() -> list[Specialisation]:
    """Elements of 1, 2, 4 and 8 bytes, few and many dimensions, any alignment."""
    launches = []
    for bits in (8, 16, 32, 64):
        for rank in (3, RANK):
            view = contiguous_view(8, f"int{bits}", (2,) * rank)
            launches += gather(view, view)
    return specialisations(launches)
