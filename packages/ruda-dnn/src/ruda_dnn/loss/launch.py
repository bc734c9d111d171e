"""Grids of the linear cross entropy.

Everything that the entry accepts is covered, in two steps: ``find_targets`` finds the rows that
count and the first wrong target, which the caller reads, for its error and for the number of valid
rows; ``linear_cross_entropy`` works on those rows. A caller that must not wait passes no number:
ignored rows then cost as much as the others and give zeros.
"""

from __future__ import annotations

from ruda_blas.gemm import launch as gemm
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

_KERNELS = "ruda_dnn.loss.kernels"
_ANY = "*fp32|fp16|bf16"
_ROWS = {"index": "*i64", "stats": "*i64"}

INDEX = Definition(
    "linear_cross_entropy.index_targets",
    f"{_KERNELS}:index_targets",
    {"target": "*i64", **_ROWS, "rows": "i32", "classes": "i64", "ignore_index": "i64",
     "BLOCK": "constexpr"},
)  # fmt: skip
GATHER = Definition(
    "linear_cross_entropy.gather_rows",
    f"{_KERNELS}:gather_rows",
    {"source": _ANY, **_ROWS, "gathered": _ANY, "width": "i32%16", "BLOCK": "constexpr"},
)
SCATTER = Definition(
    "linear_cross_entropy.scatter_rows",
    f"{_KERNELS}:scatter_rows",
    {"values": "*fp32", **_ROWS, "target": "*fp32", "first": "i64", "width": "i32%16",
     "BLOCK": "constexpr"},
)  # fmt: skip
ROWS = Definition(
    "linear_cross_entropy.rows",
    f"{_KERNELS}:cross_entropy",
    {"logits": "*fp32", "target": "*i64", **_ROWS, "losses": "*fp32", "first": "i64",
     "classes": "i32%16", "GRADIENT": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip
COLUMNS = Definition(
    "linear_cross_entropy.add_columns",
    f"{_KERNELS}:add_columns",
    {"values": "*fp32", "sums": "*fp32", "rows": "i32", "width": "i32%16",
     "ACCUMULATE": "constexpr", "ROWS": "constexpr", "COLUMNS": "constexpr"},
)  # fmt: skip
SUM = Definition(
    "linear_cross_entropy.sum_losses",
    f"{_KERNELS}:sum_losses",
    {"losses": "*fp32", "stats": "*i64", "loss": "*fp32", "count": "*i64", "rows": "i32",
     "BLOCK": "constexpr"},
)  # fmt: skip
ZERO = Definition(
    "linear_cross_entropy.zero",
    f"{_KERNELS}:zero",
    {"values": "*fp32", "count": "i64%16", "BLOCK": "constexpr"},
)

LOGITS_BUDGET = 48 << 20
"""Bytes of one chunk's logits where the caller names no chunk."""
CLASS_BLOCK = 4096


def chunk_rows(valid: int, classes: int, asked: int) -> int:
    """Rows of logits at a time: as asked, or equal parts within the budget."""
    if asked:
        return min(valid, asked)
    fitting = max(1, LOGITS_BUDGET // (4 * classes))
    return ceil_div(valid, ceil_div(valid, fitting))


def find_targets(
    target: View, classes: int, ignore_index: int, index: View, stats: View
) -> list[Launch]:
    """index int64[T] gets the rows that count; stats int64[2] their number and the first row whose
    target is outside of the vocabulary (T where none is)."""
    return [INDEX((1,), target=target, index=index, stats=stats, rows=target.size,
                  classes=classes, ignore_index=ignore_index, BLOCK=1024)]  # fmt: skip


def _zero(view: View | None) -> list[Launch]:
    if view is None or view.size == 0:
        return []
    return [ZERO((ceil_div(view.size, 1024),), values=view, count=view.size, BLOCK=1024)]


def linear_cross_entropy(
    hidden: View, head: View, bias: View | None, target: View, index: View, stats: View,
    loss: View, count: View, dhidden: View | None, dhead: View | None, dbias: View | None,
    token_chunk: int, scratch: Allocate, *, valid: int | None = None, precision: str = "ieee",
) -> list[Launch]:  # fmt: skip
    """The launches of "linear_cross_entropy.forward" after ``find_targets``; ``valid`` is the
    number of valid rows where the caller knows it, ``precision`` that of the gradients' products.
    """
    rows, width = hidden.shape
    classes = head.shape[0]
    valid = rows if valid is None else valid
    losses = scratch((max(valid, 1),), "float32")
    launches = _zero(dhidden)
    if valid == 0:
        launches += _zero(dhead) + _zero(dbias)
    chunk = chunk_rows(valid, classes, token_chunk) if valid else 0
    gradient = any(view is not None for view in (dhidden, dhead, dbias))
    if valid:
        block = 1024
        gathered = scratch((valid, width), hidden.dtype)
        launches.append(
            GATHER((valid, ceil_div(width, block)), source=hidden, index=index, stats=stats,
                   gathered=gathered, width=width, BLOCK=block)
        )  # fmt: skip
        logits = scratch((chunk, classes), "float32")
        part = scratch((chunk, width), "float32") if dhidden is not None else None
    for first in range(0, valid, max(chunk, 1)):
        some = min(chunk, valid - first)
        left = gathered.offset(first * width)._replace(shape=(some, width))
        delta = logits._replace(shape=(some, classes))
        launches += gemm.product(left, _transposed(head), bias, delta, 1.0, 0.0, scratch)
        launches.append(
            ROWS((some,), logits=delta, target=target, index=index, stats=stats, losses=losses,
                 first=first, classes=classes, GRADIENT=gradient, BLOCK=CLASS_BLOCK, num_warps=8)
        )  # fmt: skip
        if dhidden is not None and part is not None:
            out = part._replace(shape=(some, width))
            launches += gemm.product(delta, head, None, out, 1.0, 0.0, scratch, precision=precision)
            launches.append(SCATTER((some, ceil_div(width, block)), values=out, index=index,
                                    stats=stats, target=dhidden, first=first, width=width,
                                    BLOCK=block))  # fmt: skip
        beta = 0.0 if first == 0 else 1.0
        if dhead is not None:
            launches += gemm.product(_transposed(delta), left, None, dhead, 1.0, beta, scratch,
                                     precision=precision)  # fmt: skip
        if dbias is not None:
            launches.append(COLUMNS((ceil_div(classes, 128),), values=delta, sums=dbias, rows=some,
                                    width=classes, ACCUMULATE=first > 0, ROWS=16,
                                    COLUMNS=128))  # fmt: skip
    return [*launches, SUM((1,), losses=losses, stats=stats, loss=loss, count=count, rows=valid,
                           BLOCK=1024)]  # fmt: skip


def _transposed(view: View) -> View:
    return view._replace(shape=view.shape[::-1], strides=view.strides[::-1])


def bundle() -> list[Specialisation]:
    """What a bundle must contain, the products of chunks of every size included."""

    def dense(dtype: str, *shape: int) -> View:
        return contiguous_view(0, dtype, shape)

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    launches: list[Launch] = []
    for dtype in ("float32", "float16", "bfloat16"):
        for rows, classes in ((8, 4096), (64, 256), (2048, 4096), (64, 255)):
            width = 576
            hidden, head = dense(dtype, rows, width), dense(dtype, classes, width)
            target, stats = dense("int64", rows), dense("int64", 2)
            launches += find_targets(target, classes, -100, target, stats)
            for bias in (None, dense(dtype, classes)):
                wanted: tuple[View | None, ...] = (
                    dense("float32", rows, width), dense("float32", classes, width),
                    None if bias is None else dense("float32", classes),
                )  # fmt: skip
                for dhidden, dhead, dbias in ((None, None, None), wanted):
                    for chunk in (0, max(1, rows // 2)):
                        launches += linear_cross_entropy(
                            hidden, head, bias, target, target, stats, dense("float32", 1),
                            dense("int64", 1), dhidden, dhead, dbias, chunk, scratch,
                        )  # fmt: skip
        launches += _zero(dense("float32", 16)) + _zero(dense("float32", 15))
    return specialisations(launches)
