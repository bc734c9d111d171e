"""Grids and variants of the reduction kernels. ruda-torch launches them by these names.

Nothing here looks at dimensions: `Shape` says which are kept and which are reduced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ruda_runtime.launch import (
    Allocate,
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.reduction.kernels"
_KEPT = {"kept0": "i64", "kept1": "i64", "kept2": "i64", "in0": "i64=1", "in1": "i64",
         "in2": "i64", "in3": "i64", "out0": "i64", "out1": "i64", "out2": "i64",
         "out3": "i64"}  # fmt: skip
_PARTS = {"outputs": "i64", "count": "i64", "part": "i64", "part_stride": "i64"}
_TILE = {"DIMS": "constexpr", "ROWS": "constexpr", "BLOCK": "constexpr", "ACROSS": "constexpr"}

REDUCE = Definition(
    "reduction.reduce",
    f"{_KERNELS}:reduce",
    {"source": "*", "out": "*", **_PARTS, "parameter": "fp64", **_KEPT, "reduced0": "i64",
     "reduced1": "i64", "reduced2": "i64", "step0": "i64=1", "step1": "i64", "step2": "i64",
     "step3": "i64", "MAP": "constexpr", "COMBINE": "constexpr", "FINISH": "constexpr", **_TILE},
)  # fmt: skip
LOCATE = Definition(
    "reduction.locate",
    f"{_KERNELS}:locate",
    {"source": "*", "places": "*i64?", "values": "*?", "indices": "*i64", **_PARTS, **_KEPT,
     "step0": "i64=1", "LARGEST": "constexpr", **_TILE},
)  # fmt: skip
CUMULATE = Definition(
    "reduction.cumulate",
    f"{_KERNELS}:cumulate",
    {"source": "*", "out": "*", "rows": "i64", "count": "i64", "inner": "i64=1",
     "ROWS": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip

MOST_DIMS = 4
PROGRAMS = 512
"""A reduction with fewer programs is split into parts, in two launches, up to this number."""
SMALLEST_PART = 4
"""Blocks of a part, at least."""
ACROSS_TILE = (32, 64)


@dataclass(frozen=True)
class Dims:
    """Sizes of up to four dimensions, the fastest first, and the strides of each tensor."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    def padded(self, tensor: int) -> tuple[int, ...]:
        return (*self.strides[tensor], 0, 0, 0, 0)[:MOST_DIMS]


def coalesced(sizes: list[int], strides: list[tuple[int, ...]]) -> Dims:
    """The dimensions without those of size 1, sorted by the first tensor's strides, merged where
    all tensors allow it."""
    order = sorted((d for d, n in enumerate(sizes) if n != 1), key=lambda d: abs(strides[d][0]))
    kept: list[tuple[int, tuple[int, ...]]] = []
    for d in order:
        if kept and strides[d] == tuple(kept[-1][0] * each for each in kept[-1][1]):
            kept[-1] = (kept[-1][0] * sizes[d], kept[-1][1])
        else:
            kept.append((sizes[d], strides[d]))
    if not kept:
        kept = [(1, tuple(0 for _ in strides[0]) if strides else (0, 0))]
    tensors = len(kept[0][1])
    return Dims(
        tuple(size for size, _ in kept),
        tuple(tuple(stride[t] for _, stride in kept) for t in range(tensors)),
    )


def tile(count: int, across: bool) -> tuple[int, int]:
    """Rows and reduced elements of a tile."""
    if across:
        return (ACROSS_TILE[1], ACROSS_TILE[0])
    if count <= 32:
        return (64, 32)
    return (8, 256) if count <= 256 else (1, 2048)


def _parts(outputs: int, count: int, rows: int, block: int) -> tuple[int, int]:
    """Parts, and how many elements each has."""
    programs = ceil_div(outputs, rows)
    wanted = min(ceil_div(PROGRAMS, programs), count // (block * SMALLEST_PART))
    if wanted <= 1:
        return 1, count
    part = ceil_div(ceil_div(count, wanted), block) * block
    return ceil_div(count, part), part


def _geometry(kept: Dims, source: int, out: int) -> dict[str, int]:
    sizes = (*kept.sizes, 1, 1, 1)[:3]
    named = {f"kept{i}": size for i, size in enumerate(sizes)}
    named |= {f"in{i}": stride for i, stride in enumerate(kept.padded(source))}
    return named | {f"out{i}": stride for i, stride in enumerate(kept.padded(out))}


def _dense(kept: Dims) -> Dims:
    """The same kept dimensions with the strides of partial results before the first tensor's."""
    strides = []
    total = 1
    for size in kept.sizes:
        strides.append(total)
        total *= size
    return Dims(kept.sizes, (*kept.strides, tuple(strides)))


def accumulator(dtype: str, mapping: str = "value") -> str:
    if mapping == "nonzero" or dtype in ("int8", "int16", "int32", "int64", "uint8", "bool"):
        return "int64"
    return "float64" if dtype == "float64" else "float32"


def reduce(
    source: View, out: View, kept: Dims, reduced: Dims, *, combine: str, mapping: str = "value",
    finish: str = "value", parameter: float = 0.0, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """One value of `out` for every kept element.

    kept has the strides of source and out, reduced those of source.
    """
    kept = _dense(kept)
    across = abs(kept.strides[0][0]) == 1 and abs(reduced.strides[0][0]) != 1 and kept.size > 1
    outputs, count = kept.size, reduced.size
    rows, block = tile(count, across)
    parts, part = _parts(outputs, count, rows, block)
    dims = 1 if max(len(kept.sizes), len(reduced.sizes)) == 1 else MOST_DIMS
    steps = {f"reduced{i}": n for i, n in enumerate((*reduced.sizes, 1, 1, 1)[:3])}
    steps |= {f"step{i}": stride for i, stride in enumerate(reduced.padded(0))}
    whole: dict[str, Any] = {"COMBINE": combine, "DIMS": dims}
    grid = (ceil_div(outputs, rows), parts)
    if parts == 1:
        return [
            REDUCE(grid, source=source, out=out, outputs=outputs, count=count, part=part,
                   part_stride=0, parameter=parameter, **_geometry(kept, 0, 1), **steps,
                   MAP=mapping, FINISH=finish, ROWS=rows, BLOCK=block, ACROSS=across, **whole)
        ]  # fmt: skip
    partial = scratch((parts, outputs), accumulator(source.dtype, mapping))
    second_rows, second_block = tile(parts, True)
    again = dict.fromkeys(("reduced0", "reduced1", "reduced2"), 1)
    again |= {"step0": outputs, "step1": 0, "step2": 0, "step3": 0}
    return [
        REDUCE(grid, source=source, out=partial, outputs=outputs, count=count, part=part,
               part_stride=outputs, parameter=parameter, **_geometry(kept, 0, 2), **steps,
               MAP=mapping, FINISH="value", ROWS=rows, BLOCK=block, ACROSS=across, **whole),
        REDUCE((ceil_div(outputs, second_rows),), source=partial, out=out, outputs=outputs,
               count=parts, part=parts, part_stride=0, parameter=parameter,
               **_geometry(kept, 2, 1), **again | {"reduced0": parts}, MAP="value", FINISH=finish,
               ROWS=second_rows, BLOCK=second_block, ACROSS=True, **whole),
    ]  # fmt: skip


def locate(
    source: View, values: View | None, indices: View, kept: Dims, count: int, step: int, *,
    largest: bool, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """The extreme values along one dimension of `count` elements, and where they are first.

    kept has the strides of source and of both outputs.
    """
    kept = _dense(kept)
    across = abs(kept.strides[0][0]) == 1 and abs(step) != 1 and kept.size > 1
    outputs = kept.size
    rows, block = tile(count, across)
    parts, part = _parts(outputs, count, rows, block)
    whole: dict[str, Any] = {
        "LARGEST": largest, "DIMS": 1 if len(kept.sizes) == 1 else MOST_DIMS,
    }  # fmt: skip
    grid = (ceil_div(outputs, rows), parts)
    if parts == 1:
        return [
            LOCATE(grid, source=source, places=None, values=values, indices=indices,
                   outputs=outputs, count=count, part=part, part_stride=0,
                   **_geometry(kept, 0, 1), step0=step, ROWS=rows, BLOCK=block, ACROSS=across,
                   **whole)
        ]  # fmt: skip
    best = scratch((parts, outputs), accumulator(source.dtype))
    places = scratch((parts, outputs), "int64")
    second_rows, second_block = tile(parts, True)
    return [
        LOCATE(grid, source=source, places=None, values=best, indices=places, outputs=outputs,
               count=count, part=part, part_stride=outputs, **_geometry(kept, 0, 2), step0=step,
               ROWS=rows, BLOCK=block, ACROSS=across, **whole),
        LOCATE((ceil_div(outputs, second_rows),), source=best, places=places, values=values,
               indices=indices, outputs=outputs, count=parts, part=parts, part_stride=0,
               **_geometry(kept, 2, 1), step0=outputs, ROWS=second_rows, BLOCK=second_block,
               ACROSS=True, **whole),
    ]  # fmt: skip


def cumulate(source: View, out: View, axis: int) -> list[Launch]:
    """Sums along an axis of contiguous tensors."""
    shape = source.shape
    inner = math.prod(shape[axis + 1 :])
    rows = math.prod(shape[:axis]) * inner
    tile_rows, block = (8, 128) if inner == 1 else (64, 16)
    if rows * shape[axis] == 0:
        return []
    return [CUMULATE((ceil_div(rows, tile_rows),), source=source, out=out, rows=rows,
                     count=shape[axis], inner=inner, ROWS=tile_rows, BLOCK=block)]  # fmt: skip


FLOATS = ("float32", "float16", "bfloat16")


def bundle() -> list[Specialisation]:
    """What a bundle must contain: what training and generation of language models use."""

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    def vector(dtype: str) -> View:
        return scratch((64,), dtype)

    launches: list[Launch] = []
    kinds = [(each, each, combine, "value", finish) for each in FLOATS
             for combine, finish in (("sum", "value"), ("sum", "divide"), ("max", "value"),
                                     ("min", "value"))]  # fmt: skip
    kinds += [(each, "float32", "sum", "value", "value") for each in FLOATS[1:]]
    kinds += [(each, each, "sum", "square", "sqrt") for each in FLOATS]
    kinds = [kind for kind in kinds if kind[2] != "min" or kind[0] == "float32"]
    kinds += [("int64", "int64", combine, "value", "value") for combine in ("sum", "max")]
    kinds += [("bool", "int64", "sum", "value", "value")]
    kinds += [("bool", "bool", combine, "nonzero", "value") for combine in ("max", "min")]
    rows = [(8, 32), (8, 256), (8, 2048), (1, 1 << 20)]
    for given, made, combine, mapping, finish in kinds:
        for count, length in rows:
            kept = Dims((count,), ((length,), (1,))) if count > 1 else Dims((1,), ((0,), (0,)))
            launches += reduce(
                vector(given), vector(made), kept, Dims((length,), ((1,),)), combine=combine,
                mapping=mapping, finish=finish, scratch=scratch,
            )  # fmt: skip
        for length in (64, 4096):
            launches += reduce(
                vector(given), vector(made), Dims((64,), ((1,), (1,))), Dims((length,), ((64,),)),
                combine=combine, mapping=mapping, finish=finish, scratch=scratch,
            )  # fmt: skip
    for dtype in (*FLOATS, "int64"):
        for largest, values in ((True, None), (True, vector(dtype)), (False, None)):
            for length in (32, 256, 2048, 1 << 15):
                launches += locate(
                    vector(dtype), values, vector("int64"), Dims((8,), ((length,), (1,))), length,
                    1, largest=largest, scratch=scratch,
                )  # fmt: skip
    for dtype, made in (("float32", "float32"), ("int64", "int64")):
        for shape, axis in (((8, 64), 1), ((8, 64, 64), 1)):
            launches += cumulate(scratch(shape, dtype), scratch(shape, made), axis)
    return specialisations(launches)
