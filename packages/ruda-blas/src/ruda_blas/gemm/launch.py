"""Grids and variants of the dense product.

Everything that the entry accepts is covered. Beyond it, ``product`` multiplies operands of
different dtypes (in float32). Tiles, splits and their order follow from shapes and dtypes alone,
not from the GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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

_KERNELS = "ruda_blas.gemm.kernels"
_ANY = "*fp32|fp16|bf16"
_STRIDE = "i64%16"
_UNIT = "i64%16=1"

GEMM = Definition(
    "gemm.matmul",
    f"{_KERNELS}:gemm",
    {"a": _ANY, "b": _ANY, "bias": _ANY, "out": _ANY, "M": "i32", "N": "i32%16", "K": "i32%16",
     "inner": "i32", "a_outer": _STRIDE, "a_inner": _STRIDE, "a_m": _UNIT, "a_k": _UNIT,
     "b_outer": _STRIDE, "b_inner": _STRIDE, "b_k": _UNIT, "b_n": _UNIT, "out_split": _STRIDE,
     "out_outer": _STRIDE, "out_inner": _STRIDE, "out_m": _UNIT, "out_n": _UNIT, "bias_n": "i64=1",
     "alpha": "fp32", "beta": "fp32", "has_bias": "i32", "BM": "constexpr", "BN": "constexpr",
     "BK": "constexpr", "GROUP": "constexpr", "PRECISION": "constexpr"},
)  # fmt: skip
GEMM_COLUMNS = Definition("gemm.matmul_columns", GEMM.function, {**GEMM.parameters, "M": "i32%16"})
"""For an operand a whose columns are contiguous: reads of 16 bytes need an M that is divisible."""
SUM_SPLITS = Definition(
    "gemm.sum_splits",
    f"{_KERNELS}:sum_splits",
    {"partials": "*fp32", "bias": _ANY, "out": _ANY, "M": "i32", "N": "i32", "inner": "i32",
     "splits": "i32", "split_stride": "i64", "out_outer": "i64", "out_inner": "i64",
     "out_m": "i64", "out_n": "i64=1", "bias_n": "i64=1", "alpha": "fp32", "beta": "fp32",
     "has_bias": "i32", "BLOCK": "constexpr"},
)  # fmt: skip


@dataclass(frozen=True)
class Tile:
    """Rows, columns and steps of the sum of one block, and what computes it."""

    m: int
    n: int
    k: int
    num_warps: int
    num_stages: int


HALF_TILES = {"few": Tile(16, 64, 64, 4, 3), "medium": Tile(64, 64, 32, 4, 3),
              "large": Tile(128, 128, 32, 8, 3)}  # fmt: skip
FLOAT_TILES = {"few": Tile(16, 64, 32, 4, 2), "medium": Tile(64, 64, 16, 4, 2),
               "large": Tile(128, 64, 16, 8, 2)}  # fmt: skip
CANDIDATES = {
    "half": (Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3), Tile(64, 128, 64, 4, 3),
             Tile(64, 256, 32, 4, 4), Tile(32, 64, 64, 4, 4), Tile(16, 128, 128, 4, 3)),
    "float": (Tile(64, 128, 16, 8, 3), Tile(128, 128, 16, 8, 2), Tile(32, 64, 32, 4, 3),
              Tile(16, 32, 64, 2, 3)),
}  # fmt: skip
"""Other tiles worth a try; some need more shared memory than small GPUs have."""

_MANY = 96  # tiles that fill a GPU
GROUP = 8


def choose_tile(m: int, n: int, batches: int, half: bool) -> Tile:
    tiles = HALF_TILES if half else FLOAT_TILES
    if m <= 16:
        return tiles["few"]
    large = tiles["large"]
    if ceil_div(m, large.m) * ceil_div(n, large.n) * batches >= _MANY:
        return large
    return tiles["medium"]


def choose_splits(tiles: int, k: int) -> int:
    """Splits of a sum whose tiles alone leave a GPU idle: each at least 512 long."""
    if tiles >= _MANY:
        return 1
    return max(1, min(ceil_div(_MANY, tiles), k // 512, 16))


Batches = list[tuple[int, tuple[int, ...]]]
"""Batch dimensions, the outermost first: size, strides of a, b and out."""


def _batches(a: View, b: View, out: View) -> Batches:
    batch = out.shape[:-2]
    strides = (_broadcast_strides(a, batch), _broadcast_strides(b, batch), out.strides[:-2])
    return [(size, steps) for size, steps in zip(batch, zip(*strides)) if size != 1]


def _broadcast_strides(view: View, batch: Sequence[int]) -> list[int]:
    lead = len(batch) - (len(view.shape) - 2)
    own = zip(view.shape[:-2], view.strides[:-2])
    return [0] * lead + [0 if size == 1 else stride for size, stride in own]


def _taller(a: View, out: View, batches: Batches) -> tuple[View, View]:
    """Batches that share b and whose rows follow each other become rows of one product."""
    while batches:
        size, (a_step, b_step, out_step) = batches[-1]
        m, a_m, out_m = out.shape[0], a.strides[0], out.strides[0]
        if m == 1:
            a_m, out_m = a_step, out_step
        if b_step != 0 or (a_step, out_step) != (m * a_m, m * out_m):
            break
        batches.pop()
        a = a._replace(shape=(size * m, a.shape[1]), strides=(a_m, a.strides[1]))
        out = out._replace(shape=(size * m, out.shape[1]), strides=(out_m, out.strides[1]))
    return a, out


def _merged(batches: Batches) -> Batches:
    """With fewer dimensions, where memory allows it."""
    merged: Batches = []
    for size, steps in batches:
        if merged:
            outer, before = merged[-1]
            if all(step * size == larger for step, larger in zip(steps, before)):
                merged[-1] = (outer * size, steps)
                continue
        merged.append((size, steps))
    return merged


def addmm(
    a: View, b: View, bias: View | None, out: View, alpha: float, beta: float, scratch: Allocate
) -> list[Launch]:
    """The launches of "gemm.matmul"."""
    return product(a, b, bias, out, alpha, beta, scratch)


def product(
    a: View, b: View, bias: View | None, out: View, alpha: float, beta: float, scratch: Allocate,
    *, tile: Tile | None = None, splits: int | None = None, precision: str = "ieee",
) -> list[Launch]:  # fmt: skip
    """out = alpha * a @ b + beta * out + bias; a tile or a number of splits may be given."""
    if out.size == 0:
        return []
    batch = _batches(a, b, out)
    a, b, out = _matrix(a), _matrix(b), _matrix(out)
    a, out = _taller(a, out, batch)
    m, n = out.shape
    if n <= 16 < m and bias is None:  # a few columns: the transposed product has a few rows
        a, b, out, m, n = _transposed(b), _transposed(a), _transposed(out), n, m
        batch = [(size, (b_step, a_step, step)) for size, (a_step, b_step, step) in batch]
    k = 0 if alpha == 0.0 else a.shape[1]
    dimensions = _merged(batch)
    none = (1, (0, 0, 0))
    inner = dimensions.pop() if dimensions else none
    outer = dimensions.pop() if dimensions else none
    batches = inner[0] * outer[0]
    half = a.dtype == b.dtype != "float32"
    tile = tile or choose_tile(m, n, batches, half)
    tiles = ceil_div(m, tile.m) * ceil_div(n, tile.n) * batches
    splits = splits or choose_splits(tiles, k)
    common: dict[str, Any] = {
        "M": m,
        "N": n,
        "inner": inner[0],
        "bias_n": 1 if bias is None or n == 1 else bias.strides[0],
    }
    epilogue: dict[str, Any] = {"alpha": alpha, "beta": beta, "has_bias": 0 if bias is None else 1}
    definition = GEMM_COLUMNS if _stride(a, 0) == 1 else GEMM
    launches = []
    for a_at, b_at, out_at in _offsets(dimensions):
        target = out.offset(out_at)
        out_strides = {"out_outer": outer[1][2], "out_inner": inner[1][2],
                       "out_m": _stride(out, 0), "out_n": _stride(out, 1)}  # fmt: skip
        written, writes, how, split_stride = target, out_strides, epilogue, 0
        if splits > 1:
            split_stride = ceil_div(batches * m * n, 16) * 16
            written = scratch((splits, split_stride), "float32")
            writes = {"out_outer": inner[0] * m * n, "out_inner": m * n, "out_m": n, "out_n": 1}
            how = {"alpha": 1.0, "beta": 0.0, "has_bias": 0}
        launches.append(
            definition((tiles, splits), a=a.offset(a_at), b=b.offset(b_at),
                 bias=bias if bias is not None and splits == 1 else written, out=written, K=k,
                 a_outer=outer[1][0], a_inner=inner[1][0], a_m=_stride(a, 0), a_k=_stride(a, 1),
                 b_outer=outer[1][1], b_inner=inner[1][1], b_k=_stride(b, 0), b_n=_stride(b, 1),
                 out_split=split_stride, BM=tile.m, BN=tile.n, BK=tile.k, GROUP=GROUP,
                 PRECISION=precision, num_warps=tile.num_warps, num_stages=tile.num_stages,
                 **common, **writes, **how)
        )  # fmt: skip
        if splits > 1:
            launches.append(
                SUM_SPLITS((batches * m, ceil_div(n, 256)), partials=written,
                           bias=target if bias is None else bias, out=target, splits=splits,
                           split_stride=split_stride, BLOCK=256, **common, **out_strides,
                           **epilogue)
            )  # fmt: skip
    return launches


def _stride(view: View, axis: int) -> int:
    """0 for an axis of one element: it does not matter, and 1 would be another machine code."""
    return 0 if view.shape[axis] == 1 else view.strides[axis]


def _matrix(view: View) -> View:
    """The first one of a batch."""
    return view._replace(shape=view.shape[-2:], strides=view.strides[-2:])


def _transposed(view: View) -> View:
    return view._replace(shape=view.shape[::-1], strides=view.strides[::-1])


def _offsets(dimensions: Batches) -> Iterator[tuple[int, int, int]]:
    """Element offsets of a, b and out over the batch dimensions that a launch does not have."""
    for index in itertools.product(*(range(size) for size, _ in dimensions)):
        sums = [0, 0, 0]
        for place, (_, strides) in zip(index, dimensions):
            sums = [total + place * stride for total, stride in zip(sums, strides)]
        yield sums[0], sums[1], sums[2]


def bundle() -> list[Specialisation]:
    """What a bundle must contain: row and column operands, aligned and odd ones, any strides; the
    result in the operands' dtype and in float32; tiles of every size, split sums."""

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    def operand(dtype: str, rows: int, cols: int, layout: str) -> View:
        if layout == "cols":
            return _transposed(contiguous_view(0, dtype, (cols, rows)))
        view = contiguous_view(0, dtype, (rows, cols))
        return view if layout == "rows" else view._replace(strides=(2 * cols, 2))

    pairs = [("rows", "rows"), ("rows", "cols"), ("cols", "rows"), ("cols", "cols")]
    sizes = [(16, 64), (64, 64), (2048, 2048)]
    launches: list[Launch] = []
    for dtype in ("float32", "float16", "bfloat16"):
        for out_dtype in dict.fromkeys((dtype, "float32")):
            for m, n, k, a, b in (
                *((*size, 512, *pair) for size in sizes for pair in pairs),
                *((99, 99, 99, *pair) for pair in (*pairs, ("any", "any"))),
                (16, 4096, 4096, "rows", "cols"),
            ):  # fmt: skip
                launches += product(
                    operand(dtype, m, k, a), operand(dtype, k, n, b), None,
                    scratch((m, n), out_dtype), 1.0, 0.0, scratch,
                )  # fmt: skip
    return specialisations(launches)
