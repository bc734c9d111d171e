"""The negative log likelihood of given log probabilities. See README.md for the mathematics.

Rows run over the samples and, inside of them, over what lies behind the classes.
"""

import triton
import triton.language as tl


@triton.jit
def _values(x, target, weight, wrong, row, rows, classes, inner, ignore_index):
    """Loss and weight of some rows, both 0 for an ignored one; notes a target that is no class."""
    inside = row < rows
    chosen = tl.load(target + row, mask=inside, other=0)
    counts = inside & (chosen != ignore_index)
    known = counts & (chosen >= 0) & (chosen < classes)
    number = tl.max(tl.where(counts & (known == 0), row + 1, 0), 0)
    tl.store(wrong, number, mask=number > 0)
    place = (row // inner) * classes * inner + chosen * inner + row % inner
    likelihood = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    if weight is None:
        scale = tl.where(known, 1.0, 0.0)
    else:
        scale = tl.load(weight + chosen, mask=known, other=0.0).to(tl.float32)
    return -likelihood * scale, scale


@triton.jit
def nll_sum(
    x,  # [samples, classes, inner]
    target,  # int64 [rows]
    weight,  # [classes] or absent
    y,  # [1]
    total,  # [1]: sum of the weights of the rows that count
    wrong,  # int64 [1]: a row (from 1) whose target is no class; else untouched
    rows,
    classes,
    inner,
    ignore_index,
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program, so that the order of the sums is one."""
    losses = tl.zeros([BLOCK], tl.float32)
    weights = tl.zeros([BLOCK], tl.float32)
    for start in range(0, rows, BLOCK):
        row = (start + tl.arange(0, BLOCK)).to(tl.int64)
        loss, scale = _values(x, target, weight, wrong, row, rows, classes, inner, ignore_index)
        losses += loss
        weights += scale
    result = tl.sum(losses, 0)
    whole = tl.sum(weights, 0)
    if MEAN:
        result = result / whole
    tl.store(y, result.to(y.dtype.element_ty))
    tl.store(total, whole.to(total.dtype.element_ty))


@triton.jit
def nll_each(
    x,  # [samples, classes, inner]
    target,  # int64 [rows]
    weight,  # [classes] or absent
    y,  # [rows]
    wrong,  # int64 [1]
    rows,
    classes,
    inner,
    ignore_index,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    loss, _ = _values(x, target, weight, wrong, row, rows, classes, inner, ignore_index)
    tl.store(y + row, loss.to(y.dtype.element_ty), mask=row < rows)


@triton.jit
def nll_backward(
    grad,  # [1], or [rows] where EACH
    target,  # int64 [rows]
    weight,  # [classes] or absent
    total,  # [1], or absent where the result is no mean
    dx,  # [samples, classes, inner]
    classes,
    inner,
    ignore_index,
    EACH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < classes * inner
    column = place // inner
    row = sample * inner + place % inner
    chosen = tl.load(target + row, mask=inside, other=0)
    hit = inside & (chosen == column) & (chosen != ignore_index)
    if EACH:
        upper = tl.load(grad + row, mask=hit, other=0.0).to(tl.float32)
    else:
        upper = tl.load(grad).to(tl.float32)
    if total is not None:
        upper = upper / tl.load(total).to(tl.float32)
    if weight is None:
        value = -upper
    else:
        value = -upper * tl.load(weight + chosen, mask=hit, other=0.0).to(tl.float32)
    value = tl.where(hit, value, 0.0)
    tl.store(dx + sample * classes * inner + place, value.to(dx.dtype.element_ty), mask=inside)
