"""Grids and variants of the NF4 kernels.

Everything that the entries accept is covered. Two remarks: in products with x in float16, a decoded
weight beyond 65504 is infinite (the host multiplies in float32); and ``quantize`` does not look
for NaN and infinity, ``find_nonfinite`` does, whose answer the caller reads first.
"""

from __future__ import annotations

from typing import Any

from ruda_runtime.launch import (
    Allocate,
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    next_power_of_two,
    specialisations,
)

from ..gemm.launch import Tile

_KERNELS = "ruda_blas.nf4.kernels"
_ANY = "*fp32|fp16|bf16"
_MATRIX = {"cols": "i64%16", "row_stride": "i64", "col_stride": "i64"}
_WEIGHT = {"packed": "*u8", "scales": "*fp32", "codebook": "*fp32"}
_PRODUCT = {
    "x": _ANY, **_WEIGHT, "bias": f"{_ANY}?", "y": _ANY, "update_x": f"{_ANY}?",
    "update_w": f"{_ANY}?", "M": "i32", "rows": "i32%16", "cols": "i32%16",
    "half_cols": "i32%16", "block_size": "i64", "shift": "i32", "rank": "i32", "x_m": "i64%16",
    "x_k": "i64=1", "y_m": "i64%16", "y_n": "i64=1", "bias_n": "i64=1", "ux_m": "i64",
    "ux_r": "i64=1", "uw_r": "i64", "uw_n": "i64=1",
}  # fmt: skip

FIND = Definition(
    "nf4.find_nonfinite",
    f"{_KERNELS}:find_nonfinite",
    {"weight": _ANY, "found": "*i64", "count": "i64", **_MATRIX, "CONTIGUOUS": "constexpr",
     "BLOCK": "constexpr"},
)  # fmt: skip
LEAST = Definition(
    "nf4.least",
    f"{_KERNELS}:least",
    {"found": "*i64", "programs": "i32", "count": "i64", "result": "*i64", "BLOCK": "constexpr"},
)
QUANTIZE = Definition(
    "nf4.quantize",
    f"{_KERNELS}:quantize",
    {"weight": _ANY, "codebook": "*fp32", "packed": "*u8", "scales": "*fp32", "count": "i64",
     **_MATRIX, "block_size": "i64", "blocks": "i64", "CONTIGUOUS": "constexpr",
     "BLOCKS": "constexpr", "HALF": "constexpr"},
)  # fmt: skip
DEQUANTIZE = Definition(
    "nf4.dequantize",
    f"{_KERNELS}:dequantize",
    {**_WEIGHT, "weight": _ANY, "count": "i64%16", **_MATRIX, "block_size": "i64", "shift": "i32",
     "CONTIGUOUS": "constexpr", "POWER": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip
PRODUCT = Definition(
    "nf4.product",
    f"{_KERNELS}:product",
    {**_PRODUCT, "FORWARD": "constexpr", "PAIRED": "constexpr",
     "ONE_SCALE": "constexpr", "BM": "constexpr",
     "BN": "constexpr", "BK": "constexpr", "RANK": "constexpr", "GROUP": "constexpr"},
)  # fmt: skip
GEMV = Definition(
    "nf4.gemv",
    f"{_KERNELS}:gemv",
    {**_PRODUCT, "ROWS": "constexpr", "BN": "constexpr", "HALF": "constexpr"},
)

HALF_TILES = {"few": Tile(16, 64, 64, 4, 2), "medium": Tile(64, 64, 64, 4, 2),
              "large": Tile(128, 128, 32, 8, 2),
              "large_gradient": Tile(128, 64, 64, 8, 2)}  # fmt: skip
FLOAT_TILES = {"few": Tile(16, 64, 32, 4, 2), "medium": Tile(64, 64, 16, 4, 2),
               "large": Tile(128, 64, 16, 8, 2)}  # fmt: skip
CANDIDATES = {
    "half": (Tile(128, 64, 64, 4, 3), Tile(64, 128, 64, 4, 3), Tile(128, 128, 64, 8, 3),
             Tile(32, 64, 64, 4, 2), Tile(16, 32, 128, 4, 2)),
    "float": (Tile(64, 128, 16, 8, 2), Tile(32, 64, 32, 4, 2), Tile(16, 32, 64, 4, 2)),
    "gemv": ({"BN": 2, "HALF": 512}, {"BN": 8, "HALF": 128}, {"BN": 4, "HALF": 512}),
}  # fmt: skip
"""Other tiles worth a try."""

GEMV_ROWS = 4
GEMV_BLOCK = {"BN": 4, "HALF": 256}
_FLAT = 1024


def _contiguous(view: View) -> bool:
    return view.strides == (view.shape[1], 1) or view.size <= 1


def _matrix(view: View) -> dict[str, Any]:
    dense = _contiguous(view)
    return {
        "cols": view.shape[1],
        "row_stride": 0 if dense else view.strides[0],
        "col_stride": 0 if dense else view.strides[1],
        "CONTIGUOUS": dense,
    }


def _shift(block_size: int) -> tuple[int, bool]:
    """The logarithm of a power of two, and whether it is one."""
    power = block_size & (block_size - 1) == 0
    return (block_size.bit_length() - 1 if power else 0), power


def find_nonfinite(weight: View, result: View, scratch: Allocate) -> list[Launch]:
    """result int64[1] gets the first flat index that is NaN or infinite, else the count."""
    count = weight.size
    programs = ceil_div(count, _FLAT)
    found = scratch((max(programs, 1),), "int64")
    launches = []
    if programs > 0:
        launches.append(FIND((programs,), weight=weight, found=found, count=count, BLOCK=_FLAT,
                             **_matrix(weight)))  # fmt: skip
    last = LEAST((1,), found=found, programs=programs, count=count, result=result, BLOCK=_FLAT)
    return [*launches, last]


def quantize(
    weight: View, codebook: View, packed: View, scales: View, block_size: int
) -> list[Launch]:
    """The launches of "nf4.quantize", for a finite weight; ``codebook`` is the default one."""
    count = weight.size
    if count == 0:
        return []
    half = min(next_power_of_two(block_size // 2), 1024)
    at_once = max(1, 1024 // half)
    blocks = ceil_div(count, block_size)
    return [
        QUANTIZE((ceil_div(blocks, at_once),), weight=weight, codebook=codebook, packed=packed,
                 scales=scales, count=count, block_size=block_size, blocks=blocks, BLOCKS=at_once,
                 HALF=half, **_matrix(weight))
    ]  # fmt: skip


def dequantize(
    packed: View, scales: View, codebook: View, weight: View, block_size: int
) -> list[Launch]:
    """The launches of "nf4.dequantize"."""
    count = weight.size
    if count == 0:
        return []
    shift, power = _shift(block_size)
    return [
        DEQUANTIZE((ceil_div(count, _FLAT),), packed=packed, scales=scales, codebook=codebook,
                   weight=weight, count=count, block_size=block_size, shift=shift, POWER=power,
                   BLOCK=_FLAT, **_matrix(weight))
    ]  # fmt: skip


def choose_tile(m: int, n: int, half: bool, forward: bool) -> Tile:
    tiles = HALF_TILES if half else FLOAT_TILES
    if m <= 16:
        return tiles["few"]
    large = tiles["large" if forward or not half else "large_gradient"]
    return large if ceil_div(m, large.m) * ceil_div(n, large.n) >= 96 else tiles["medium"]


def matmul(
    x: View, packed: View, scales: View, codebook: View, bias: View | None, y: View,
    out_features: int, in_features: int, block_size: int, update_x: View | None = None,
    update_w: View | None = None, *, forward: bool = True, tile: Tile | None = None,
    few_rows: bool = True,
) -> list[Launch]:  # fmt: skip
    """The launches of "nf4.matmul" or, with ``forward`` False, of "nf4.input_grad"."""
    m = x.shape[0]
    n = out_features if forward else in_features
    if m == 0 or n == 0:
        return []
    if update_x is not None and update_x.shape[1] == 0:
        update_x = update_w = None
    shift, power = _shift(block_size)
    paired = power and in_features % 2 == 0
    ux = (0, 1) if update_x is None else update_x.strides
    uw = (0, 1) if update_w is None else update_w.strides
    common: dict[str, Any] = {
        "x": x,
        "packed": packed,
        "scales": scales,
        "codebook": codebook,
        "bias": bias,
        "y": y,
        "update_x": update_x,
        "update_w": update_w,
        "M": m,
        "rows": out_features,
        "cols": in_features,
        "half_cols": in_features // 2,
        "block_size": block_size,
        "shift": shift,
        "rank": 0 if update_x is None else update_x.shape[1],
        "x_m": 0 if m == 1 else x.strides[0],
        "x_k": x.strides[1] if x.shape[1] > 1 else 1,
        "y_m": 0 if m == 1 else y.strides[0],
        "y_n": y.strides[1] if n > 1 else 1,
        "bias_n": 1 if bias is None or n == 1 else bias.strides[0],
        "ux_m": ux[0],
        "ux_r": ux[1],
        "uw_r": uw[0],
        "uw_n": uw[1],
    }
    if forward and paired and m <= GEMV_ROWS and few_rows:
        rows = next_power_of_two(m)
        return [GEMV((ceil_div(n, GEMV_BLOCK["BN"]),), ROWS=rows, **GEMV_BLOCK, **common)]
    tile = tile or choose_tile(m, n, x.dtype != "float32", forward)
    width = tile.k if forward else tile.n
    one_scale = paired and in_features % block_size == 0 and block_size % width == 0
    return [
        PRODUCT((ceil_div(m, tile.m) * ceil_div(n, tile.n),), FORWARD=forward, PAIRED=paired,
                ONE_SCALE=one_scale, BM=tile.m, BN=tile.n, BK=tile.k, RANK=16, GROUP=8,
                num_warps=tile.num_warps, num_stages=tile.num_stages, **common)
    ]  # fmt: skip


def bundle() -> list[Specialisation]:
    """What a bundle must contain: dense weights in blocks of a power of two and any; products of
    every tile with and without bias and update."""

    def dense(dtype: str, *shape: int) -> View:
        return contiguous_view(0, dtype, shape)

    launches: list[Launch] = []
    weight = (dense("uint8", 1), dense("float32", 1), dense("float32", 16))
    for dtype in ("float32", "float16", "bfloat16"):
        for cols in (64, 63):
            w = dense(dtype, 64, cols)
            launches += find_nonfinite(w, dense("int64", 1), lambda s, d: dense(d, *s))
            for block in (64, 128, 4096):
                launches += quantize(w, weight[2], weight[0], weight[1], block)
            for block in (64, 66):
                launches += dequantize(*weight, w, block)
        for m in (1, 2, 4, 16, 64, 8192):
            x, bias = dense(dtype, m, 4096), dense(dtype, 4096)
            for rank, with_bias in ((0, False), (16, False), (0, True)):
                update = (dense(dtype, m, rank), dense(dtype, rank, 4096)) if rank else ()
                launches += matmul(
                    x, *weight, bias if with_bias else None, x, 4096, 4096, 64, *update
                )
                if not with_bias:
                    launches += matmul(x, *weight, None, x, 4096, 4096, 64, *update, forward=False)
        for m in (1, 64):
            odd = dense(dtype, m, 99)
            for forward in (True, False):
                launches += matmul(odd, *weight, None, odd, 99, 99, 64, forward=forward)
    return specialisations(launches)
