"""Grids and variants of the normalisation kernels.

Everything that the entries accept is covered: float32, float16 and bfloat16, weights in x's dtype
or float32 or absent, contiguous rows of any width (at most 2^31 - 1 rows), absent outputs.
"""

from __future__ import annotations

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

_KERNELS = "ruda_dnn.normalization.kernels"
_ANY = "*fp32|fp16|bf16"
_ROW = {"width": "i32%16"}

RMS_FORWARD = Definition(
    "rms_norm.forward",
    f"{_KERNELS}:rms_norm_forward",
    {"x": _ANY, "weight": f"{_ANY}?", "y": _ANY, "rstd": "*fp32", **_ROW, "epsilon": "fp32",
     "BLOCK": "constexpr", "ONE_PASS": "constexpr"},
)  # fmt: skip
RMS_BACKWARD = Definition(
    "rms_norm.backward",
    f"{_KERNELS}:rms_norm_backward",
    {"x": _ANY, "weight": f"{_ANY}?", "grad": _ANY, "rstd": "*fp32", "dx": _ANY, **_ROW,
     "BLOCK": "constexpr", "ONE_PASS": "constexpr"},
)  # fmt: skip
LAYER_FORWARD = Definition(
    "layer_norm.forward",
    f"{_KERNELS}:layer_norm_forward",
    {"x": _ANY, "weight": f"{_ANY}?", "bias": f"{_ANY}?", "y": _ANY, "mean": "*fp32",
     "rstd": "*fp32", **_ROW, "epsilon": "fp32", "BLOCK": "constexpr", "ONE_PASS": "constexpr"},
)  # fmt: skip
LAYER_BACKWARD = Definition(
    "layer_norm.backward",
    f"{_KERNELS}:layer_norm_backward",
    {"x": _ANY, "weight": f"{_ANY}?", "grad": _ANY, "mean": "*fp32", "rstd": "*fp32",
     "dx": f"{_ANY}?", "rest": "*fp32", **_ROW, "BLOCK": "constexpr"},
)  # fmt: skip
PARTIALS = Definition(
    "normalization.parameter_partials",
    f"{_KERNELS}:parameter_partials",
    {"x": _ANY, "grad": _ANY, "mean": "*fp32?", "rstd": "*fp32", "rest": "*fp32?",
     "weight_sums": "*fp32?", "bias_sums": "*fp32?", "rows": "i64", "parts": "i64", **_ROW,
     "ROWS": "constexpr", "COLUMNS": "constexpr"},
)  # fmt: skip
SUM = Definition(
    "normalization.sum_partials",
    f"{_KERNELS}:sum_partials",
    {"partials": "*fp32", "out": _ANY, "parts": "i32", **_ROW, "BLOCK": "constexpr"},
)

WARPS = {1024: 4, 2048: 8, 4096: 8, 8192: 16}
"""Rows up to the largest of these widths stay in registers; the warps that hold them."""
LOOP = 2048
"""Values of a longer row, or of one that is not aligned, that are read at a time."""


def part_count(rows: int, wanted: int) -> int:
    """Parts of a parameter's gradient: they follow from the row count alone."""
    parts = wanted or min(max(ceil_div(rows, 32), 1), 128)
    return max(1, min(parts, rows))


def row_blocks(width: int, aligned: bool) -> dict[str, int | bool]:
    """Block size, whether it holds the row, and warps."""
    for block, warps in WARPS.items():
        if aligned and width <= block:
            return {"BLOCK": block, "ONE_PASS": True, "num_warps": warps}
    return {"BLOCK": LOOP, "ONE_PASS": False, "num_warps": 8}


def _blocks(*views: View | None, width: int) -> dict[str, int | bool]:
    given = [view for view in views if view is not None]
    aligned = width % 16 == 0 and all(view.pointer % 16 == 0 for view in given)
    return row_blocks(width, aligned)


def rms_norm_forward(
    x: View, weight: View | None, y: View, rstd: View | None, epsilon: float, scratch: Allocate
) -> list[Launch]:
    """The launches of "rms_norm.forward"."""
    width = x.shape[-1]
    rows = x.size // width
    if rows == 0:
        return []
    rstd = rstd or scratch((rows,), "float32")
    blocks = _blocks(x, weight, y, rstd, width=width)
    return [RMS_FORWARD((rows,), x=x, weight=weight, y=y, rstd=rstd, width=width, epsilon=epsilon,
                        **blocks)]  # fmt: skip


def rms_norm_backward(
    x: View, weight: View | None, grad: View, rstd: View, dx: View | None, dweight: View | None,
    parts: int, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """The launches of "rms_norm.backward"."""
    width = x.shape[-1]
    rows = x.size // width
    launches = []
    if dx is not None and rows > 0:
        blocks = _blocks(x, weight, grad, rstd, dx, width=width)
        launches.append(RMS_BACKWARD((rows,), x=x, weight=weight, grad=grad, rstd=rstd, dx=dx,
                                     width=width, **blocks))  # fmt: skip
    return launches + _parameters(x, grad, None, rstd, None, dweight, None, parts, scratch)


def layer_norm_forward(
    x: View, weight: View | None, bias: View | None, y: View, mean: View | None,
    rstd: View | None, epsilon: float, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """The launches of "layer_norm.forward"."""
    width = x.shape[-1]
    rows = x.size // width
    if rows == 0:
        return []
    mean = mean or scratch((rows,), "float32")
    rstd = rstd or scratch((rows,), "float32")
    blocks = _blocks(x, weight, bias, y, mean, rstd, width=width)
    return [LAYER_FORWARD((rows,), x=x, weight=weight, bias=bias, y=y, mean=mean, rstd=rstd,
                          width=width, epsilon=epsilon, **blocks)]  # fmt: skip


def layer_norm_backward(
    x: View, weight: View | None, grad: View, mean: View, rstd: View, dx: View | None,
    dweight: View | None, dbias: View | None, parts: int, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """The launches of "layer_norm.backward"."""
    width = x.shape[-1]
    rows = x.size // width
    launches = []
    rest = None
    if dx is not None or dweight is not None:
        rest = scratch((max(rows, 1),), "float32")
    if rest is not None and rows > 0:
        small = width <= 1024
        launches.append(
            LAYER_BACKWARD((rows,), x=x, weight=weight, grad=grad, mean=mean, rstd=rstd, dx=dx,
                           rest=rest, width=width, BLOCK=1024 if small else 4096,
                           num_warps=4 if small else 8)
        )  # fmt: skip
    if dweight is None:  # the sum of grad alone is RMSNorm's
        return launches + _parameters(x, grad, None, rstd, None, None, dbias, parts, scratch)
    return launches + _parameters(x, grad, mean, rstd, rest, dweight, dbias, parts, scratch)


def _parameters(
    x: View, grad: View, mean: View | None, rstd: View, rest: View | None, dweight: View | None,
    dbias: View | None, parts: int, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """Gradients of the weight and the bias: float32 parts of consecutive rows, then their sum."""
    if dweight is None and dbias is None:
        return []
    width = x.shape[-1]
    rows = x.size // width
    count = part_count(rows, parts)
    sums = [None if out is None else scratch((count, width), "float32") for out in (dweight, dbias)]
    columns = 128
    launches = [
        PARTIALS((count, ceil_div(width, columns)), x=x, grad=grad, mean=mean, rstd=rstd, rest=rest,
                 weight_sums=sums[0], bias_sums=sums[1], rows=rows, parts=count, width=width,
                 ROWS=16, COLUMNS=columns)
    ]  # fmt: skip
    for partials, out in zip(sums, (dweight, dbias)):
        if partials is not None and out is not None:
            launches.append(SUM((ceil_div(width, 256),), partials=partials, out=out, parts=count,
                                width=width, BLOCK=256))  # fmt: skip
    return launches


def bundle() -> list[Specialisation]:
    """What a bundle must contain: every pair of dtypes, the widths of models, and odd widths."""

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    launches: list[Launch] = []
    for dtype in ("float32", "float16", "bfloat16"):
        for weight_dtype in (*dict.fromkeys((dtype, "float32")), None):
            for width in (*WARPS, 16384, 1023):
                x = contiguous_view(0, dtype, (64, width))
                row = contiguous_view(0, "float32", (64,))
                w = None if weight_dtype is None else contiguous_view(0, weight_dtype, (width,))
                if w is None and width not in (16384, 1023):
                    continue
                bias = w or contiguous_view(0, dtype, (width,))
                launches += rms_norm_forward(x, w, x, row, 1e-5, scratch)
                launches += rms_norm_backward(x, w, x, row, x, w, 0, scratch)
                launches += layer_norm_forward(x, w, w, x, row, row, 1e-5, scratch)
                launches += layer_norm_backward(x, w, x, row, row, x, w, bias, 0, scratch)
    return specialisations(launches)
