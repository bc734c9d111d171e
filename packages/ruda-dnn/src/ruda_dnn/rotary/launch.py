"""Grids and variants of the rotary kernel. Everything that the entries accept is covered."""

from __future__ import annotations

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    next_power_of_two,
    specialisations,
)

_ANY = "*fp32|fp16|bf16"

ROTARY = Definition(
    "rotary",
    "ruda_dnn.rotary.kernels:rotary",
    {"x": _ANY, "cos": _ANY, "sin": _ANY, "y": _ANY, "batch_stride": "i64%16",
     "token_stride": "i64%16", "head_stride": "i64%16", "table_stride": "i64%16", "length": "i32",
     "heads": "i32", "features": "i32%16", "half": "i32%16", "TRANSPOSED": "constexpr",
     "HEADS": "constexpr", "HALF": "constexpr"},
)  # fmt: skip


def blocks(half: int) -> dict[str, int]:
    """Heads and pairs of a tile: about 1024 pairs."""
    pairs = min(max(next_power_of_two(half), 32), 1024)
    return {"HEADS": max(1, 512 // pairs), "HALF": pairs}


def rotary(x: View, cos: View, sin: View, y: View, transposed: bool) -> list[Launch]:
    """The launches of "rotary.forward" or, transposed, of "rotary.backward"."""
    batch, length, heads, features = x.shape
    if x.size == 0:
        return []
    rotated = cos.shape[-1]
    tile = blocks(rotated // 2)
    return [
        ROTARY((batch * length, ceil_div(heads, tile["HEADS"])), x=x, cos=cos, sin=sin, y=y,
               batch_stride=x.strides[0], token_stride=x.strides[1], head_stride=x.strides[2],
               table_stride=0 if cos.shape[0] == 1 else length * rotated, length=length,
               heads=heads, features=features, half=rotated // 2, TRANSPOSED=transposed, **tile)
    ]  # fmt: skip


def bundle() -> list[Specialisation]:
    """What a bundle must contain: heads of 32 to 256 features, aligned and not."""
    launches: list[Launch] = []
    for dtype in ("float32", "float16", "bfloat16"):
        for table in dict.fromkeys((dtype, "float32")):
            for features, rotated in ((64, 64), (128, 128), (256, 256), (80, 80), (160, 160)):
                x = contiguous_view(0, dtype, (1, 4, 4, features))
                row = contiguous_view(0, table, (1, 4, rotated))
                for transposed in (False, True):
                    launches += rotary(x, row, row, x, transposed)
    return specialisations(launches)
