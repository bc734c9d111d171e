"""Grids and variants of the softmax kernels.

Everything that the entries accept is covered, up to 65535 slices before an axis that is not the
last (more raise NotImplementedError).
"""

from __future__ import annotations

import math
from typing import Any

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.softmax.kernels"
_ANY = "*fp32|fp16|bf16"
_ROWS = {"count": "i32%16", "LOGARITHM": "constexpr", "BLOCK": "constexpr", "ONE_PASS": "constexpr"}
_COLUMNS = {"count": "i32", "inner": "i32%16", "LOGARITHM": "constexpr", "STEPS": "constexpr",
            "LANES": "constexpr"}  # fmt: skip

ROWS = Definition("softmax.rows", f"{_KERNELS}:softmax_rows", {"x": _ANY, "y": _ANY, **_ROWS})
COLUMNS = Definition(
    "softmax.columns", f"{_KERNELS}:softmax_columns", {"x": _ANY, "y": _ANY, **_COLUMNS}
)
ROWS_BACKWARD = Definition(
    "softmax.rows_backward",
    f"{_KERNELS}:softmax_rows_backward",
    {"grad": _ANY, "y": _ANY, "dx": _ANY, **_ROWS},
)
COLUMNS_BACKWARD = Definition(
    "softmax.columns_backward",
    f"{_KERNELS}:softmax_columns_backward",
    {"grad": _ANY, "y": _ANY, "dx": _ANY, **_COLUMNS},
)

WARPS = {1024: 4, 4096: 8, 8192: 16}
"""Rows up to the largest of these lengths stay in registers; the warps that hold them."""
LOOP = 4096
STEPS, LANES = 16, 64


def row_blocks(count: int) -> dict[str, int | bool]:
    """Block size, whether it holds the row, and warps."""
    for block, warps in WARPS.items():
        if count <= block:
            return {"BLOCK": block, "ONE_PASS": True, "num_warps": warps}
    return {"BLOCK": LOOP, "ONE_PASS": False, "num_warps": 8}


def _launch(
    rows: Definition, columns: Definition, shape: tuple[int, ...], axis: int, logarithm: bool,
    **views: Any,
) -> list[Launch]:  # fmt: skip
    outer, count = math.prod(shape[:axis]), shape[axis]
    inner = math.prod(shape[axis + 1 :])
    if outer * count * inner == 0:
        return []
    if inner == 1:
        return [rows((outer,), **views, count=count, LOGARITHM=logarithm, **row_blocks(count))]
    if outer > 65535:
        raise NotImplementedError(
            f"[softmax] axis: got {axis} of shape {list(shape)}, wanted at most 65535 slices "
            "before it on cuda; move the axis to the end"
        )
    return [columns((ceil_div(inner, LANES), outer), **views, count=count, inner=inner,
                    LOGARITHM=logarithm, STEPS=STEPS, LANES=LANES)]  # fmt: skip


def softmax_forward(x: View, y: View, axis: int, logarithm: bool) -> list[Launch]:
    """The launches of "softmax.forward"."""
    return _launch(ROWS, COLUMNS, x.shape, axis, logarithm, x=x, y=y)


def softmax_backward(grad: View, y: View, dx: View, axis: int, logarithm: bool) -> list[Launch]:
    """The launches of "softmax.backward"."""
    return _launch(ROWS_BACKWARD, COLUMNS_BACKWARD, y.shape, axis, logarithm, grad=grad, y=y, dx=dx)


def bundle() -> list[Specialisation]:
    """What a bundle must contain: rows that fit registers, longer ones, odd ones, other axes."""
    launches: list[Launch] = []
    lengths = [length - odd for length in (*WARPS, 16384) for odd in (0, 1)]
    for dtype in ("float32", "float16", "bfloat16"):
        for logarithm in (False, True):
            shapes = [((2, length), 1) for length in lengths] + [((2, 64), 0), ((2, 63), 0)]
            for shape, axis in shapes:
                x = contiguous_view(0, dtype, shape)
                launches += softmax_forward(x, x, axis, logarithm)
                launches += softmax_backward(x, x, x, axis, logarithm)
    return specialisations(launches)
