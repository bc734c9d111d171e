"""Grids of the kernels of the negative log likelihood."""

from __future__ import annotations

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.nll_loss.kernels"
_ANY = "*fp32|fp16|bf16"
_SIZES = {"classes": "i32", "inner": "i32=1", "ignore_index": "i64"}

SUM = Definition(
    "nll_loss.sum",
    f"{_KERNELS}:nll_sum",
    {"x": _ANY, "target": "*i64", "weight": f"{_ANY}?", "y": _ANY, "total": _ANY, "wrong": "*i64",
     "rows": "i32", **_SIZES, "MEAN": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip
EACH = Definition(
    "nll_loss.each",
    f"{_KERNELS}:nll_each",
    {"x": _ANY, "target": "*i64", "weight": f"{_ANY}?", "y": _ANY, "wrong": "*i64", "rows": "i32",
     **_SIZES, "BLOCK": "constexpr"},
)  # fmt: skip
BACKWARD = Definition(
    "nll_loss.backward",
    f"{_KERNELS}:nll_backward",
    {"grad": _ANY, "target": "*i64", "weight": f"{_ANY}?", "total": f"{_ANY}?", "dx": _ANY,
     **_SIZES, "EACH": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip

BLOCK = 1024


def _sizes(x: View, ignore_index: int) -> dict[str, int]:
    _, classes, inner = x.shape
    return {"classes": classes, "inner": inner, "ignore_index": ignore_index}


def forward(
    x: View, target: View, weight: View | None, y: View, total: View, wrong: View,
    ignore_index: int, mean: bool,
) -> list[Launch]:  # fmt: skip
    """The mean or the sum over all rows, and the sum of their weights. x ``[N, C, inner]``."""
    return [SUM((1,), x=x, target=target, weight=weight, y=y, total=total, wrong=wrong,
                rows=target.size, **_sizes(x, ignore_index), MEAN=mean, BLOCK=BLOCK)]  # fmt: skip


def forward_each(
    x: View, target: View, weight: View | None, y: View, wrong: View, ignore_index: int
) -> list[Launch]:
    """The loss of every row."""
    if target.size == 0:
        return []
    return [EACH((ceil_div(target.size, BLOCK),), x=x, target=target, weight=weight, y=y,
                 wrong=wrong, rows=target.size, **_sizes(x, ignore_index),
                 BLOCK=BLOCK)]  # fmt: skip


def backward(
    grad: View, target: View, weight: View | None, total: View | None, dx: View,
    ignore_index: int, each: bool,
) -> list[Launch]:  # fmt: skip
    """The gradient of x, zeros included; `total` where the result was a mean.

    Raises:
        NotImplementedError: more than 65535 blocks of a sample's values.
    """
    samples, classes, inner = dx.shape
    if dx.size == 0:
        return []
    blocks = ceil_div(classes * inner, BLOCK)
    if blocks > 65535:
        raise NotImplementedError(
            f"[nll_loss] x: got shape {list(dx.shape)}, wanted at most {65535 * BLOCK} values of "
            "one sample on the cuda target"
        )
    return [BACKWARD((samples, blocks), grad=grad, target=target, weight=weight, total=total,
                     dx=dx, **_sizes(dx, ignore_index), EACH=each, BLOCK=BLOCK)]  # fmt: skip


def bundle() -> list[Specialisation]:
    """What a bundle must contain: weights or none, one value behind the classes or more."""
    launches: list[Launch] = []
    rows = contiguous_view(0, "int64", (64,))
    for pointer in (0, 8):
        for dtype in ("float32", "float16", "bfloat16"):
            one = contiguous_view(pointer, dtype, (64,))
            for weight in (None, one):
                for inner in (1, 2):
                    x = contiguous_view(pointer, dtype, (64 // inner, 16, inner))
                    for mean in (False, True):
                        launches += forward(x, rows, weight, one, one, rows, -100, mean)
                        total = one if mean else None
                        launches += backward(one, rows, weight, total, x, -100, False)
                    launches += forward_each(x, rows, weight, one, rows, -100)
                    launches += backward(one, rows, weight, None, x, -100, True)
    return specialisations(launches)
