"""Cross entropy of a linear head on the device; the products are ruda-blas's. See README.md.

Valid rows are gathered first: `index[i]` is the place of the i-th row that counts.
"""

import triton
import triton.language as tl

from ..softmax.kernels import include, merge_lanes


@triton.jit
def index_targets(
    target,  # int64 [rows]
    index,  # int64 [rows]
    stats,  # int64 [2]: valid rows, the first row whose target is wrong (else rows)
    rows,
    classes,
    ignore_index,
    BLOCK: tl.constexpr,
):
    """One program, so that valid rows keep their order."""
    before = tl.zeros([1], tl.int64)
    wrong = tl.zeros([BLOCK], tl.int64) + rows
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < rows
        value = tl.load(target + row, mask=inside, other=0)
        valid = inside & (value != ignore_index)
        known = (value >= 0) & (value < classes)
        wrong = tl.where(valid & (known == 0), tl.minimum(wrong, row), wrong)
        ones = tl.where(valid, 1, 0).to(tl.int64)
        place = before + tl.cumsum(ones, 0) - 1
        tl.store(index + place, row.to(tl.int64), mask=valid)
        before += tl.sum(ones, 0)
    tl.store(stats + tl.arange(0, 1), before)
    tl.store(stats + 1, tl.min(wrong, 0))


@triton.jit
def gather_rows(
    source,  # [rows, width]
    index,  # int64
    stats,
    gathered,  # [valid rows, width]; rows after the last valid one become 0
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    valid = row < tl.load(stats)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = tl.load(index + tl.where(valid, row, 0)) * width
    limit = tl.where(valid, width, 0)
    value = tl.load(source + place + column, mask=column < limit, other=0.0)
    tl.store(gathered + row * width + column, value, mask=inside)


@triton.jit
def scatter_rows(
    values,  # float32 [valid rows, width]
    index,  # int64
    stats,
    target,  # float32 [rows, width]
    first,  # place of values' first row among the valid rows
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    valid = first + row < tl.load(stats)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < tl.where(valid, width, 0)
    place = tl.load(index + tl.where(valid, first + row, 0)) * width
    value = tl.load(values + row * width + column, mask=inside, other=0.0)
    tl.store(target + place + column, value, mask=inside)


@triton.jit
def cross_entropy(
    logits,  # float32 [chunk, classes]; becomes softmax - onehot where GRADIENT
    target,  # int64 [rows]
    index,  # int64
    stats,
    losses,  # float32 [valid rows]
    first,  # place of the chunk's first row among the valid rows
    classes,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    valid = first + row < tl.load(stats)
    logit_row = logits + row * classes
    if valid:
        chosen = tl.load(target + tl.load(index + first + row))
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, classes, BLOCK):
            column = start + tl.arange(0, BLOCK)
            value = tl.load(logit_row + column, mask=column < classes, other=float("-inf"))
            highest, sums = include(highest, sums, value)
        peak, total = merge_lanes(highest, sums)
        # In this order the largest logit as the target leaves the logarithm alone.
        logit = tl.load(logit_row + chosen)
        tl.store(losses + first + row, (peak - logit) + tl.log(total))
        if GRADIENT:
            for start in range(0, classes, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = column < classes
                value = tl.load(logit_row + column, mask=inside, other=0.0)
                share = tl.exp(value - peak) / total
                tl.store(logit_row + column, tl.where(column == chosen, share - 1.0, share),
                         mask=inside)  # fmt: skip
    else:
        tl.store(losses + first + row, 0.0)
        if GRADIENT:
            for start in range(0, classes, BLOCK):
                column = start + tl.arange(0, BLOCK)
                nothing = tl.zeros([BLOCK], tl.float32)
                tl.store(logit_row + column, nothing, mask=column < classes)


@triton.jit
def add_columns(
    values,  # float32 [rows, width]
    sums,  # float32 [width]
    rows,
    width,
    ACCUMULATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        total += tl.load(values + place, mask=inside, other=0.0)
    result = tl.sum(total, 0)
    if ACCUMULATE:
        result += tl.load(sums + column, mask=column < width, other=0.0)
    tl.store(sums + column, result, mask=column < width)


@triton.jit
def sum_losses(losses, stats, loss, count, rows, BLOCK: tl.constexpr):
    """loss[0] = the sum in float64, in a fixed order; count[0] = the valid rows; one program."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, rows, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(losses + place, mask=place < rows, other=0.0).to(tl.float64)
    tl.store(loss, tl.sum(total, 0).to(tl.float32))
    tl.store(count, tl.load(stats))


@triton.jit
def zero(values, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(values + place, tl.zeros([BLOCK], tl.float32), mask=place < count)
