"""Softmax and its logarithm on the device. See README.md for the mathematics.

Longer rows, and other axes than the last, keep a maximum and a sum of exponentials for every lane;
a lane that has seen nothing but -inf has the sum 0, or NaN. NaN and +inf reach the row through the
sum.
"""

import triton
import triton.language as tl


@triton.jit
def include(highest, total, value):
    """One more value for every lane: its new maximum and sum of e^(value - maximum)."""
    raised = tl.maximum(highest, value)
    kept = tl.where(highest == float("-inf"), total, total * tl.exp(highest - raised))
    added = tl.where(value == float("-inf"), 0.0, tl.exp(value - raised))
    return raised, kept + added


@triton.jit
def merge_lanes(highest, total):
    """The maximum of all lanes and their sum of e^(value - maximum)."""
    peak = tl.max(highest, 0)
    scaled = tl.where(highest == float("-inf"), total, total * tl.exp(highest - peak))
    return peak, tl.sum(scaled, 0)


@triton.jit
def _column_tile(start, count, inner, STEPS: tl.constexpr, LANES: tl.constexpr):
    """Places of a tile of the axis and the lanes of this program, and whether they exist."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    step = start + tl.arange(0, STEPS)
    inside = (step < count)[:, None] & (lane < inner)[None, :]
    begin = tl.program_id(1).to(tl.int64) * count * inner
    return begin + step.to(tl.int64)[:, None] * inner + lane[None, :], inside


@triton.jit
def _result(value, peak, total, LOGARITHM: tl.constexpr):
    if LOGARITHM:
        result = (value - peak) - tl.log(total)
    else:
        result = tl.exp(value - peak) / total
    return result


@triton.jit
def softmax_rows(
    x,  # [rows, count]
    y,  # [rows, count]
    count,
    LOGARITHM: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_PASS: tl.constexpr,  # count <= BLOCK: the row stays in registers
):
    row = tl.program_id(0).to(tl.int64) * count
    columns = tl.arange(0, BLOCK)
    if ONE_PASS:
        inside = columns < count
        value = tl.load(x + row + columns, mask=inside, other=float("-inf")).to(tl.float32)
        peak = tl.max(value, 0)
        total = tl.sum(tl.where(inside, tl.exp(value - peak), 0.0), 0)
        result = _result(value, peak, total, LOGARITHM)
        tl.store(y + row + columns, result.to(y.dtype.element_ty), mask=inside)
    else:
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, count, BLOCK):
            places = start + columns
            value = tl.load(x + row + places, mask=places < count, other=float("-inf"))
            highest, sums = include(highest, sums, value.to(tl.float32))
        top, whole = merge_lanes(highest, sums)
        for start in range(0, count, BLOCK):
            places = start + columns
            within = places < count
            more = tl.load(x + row + places, mask=within, other=0.0).to(tl.float32)
            out = _result(more, top, whole, LOGARITHM)
            tl.store(y + row + places, out.to(y.dtype.element_ty), mask=within)


@triton.jit
def softmax_columns(
    x,  # [outer, count, inner]
    y,  # [outer, count, inner]
    count,
    inner,
    LOGARITHM: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
):
    highest = tl.full([STEPS, LANES], float("-inf"), tl.float32)
    sums = tl.zeros([STEPS, LANES], tl.float32)
    for start in range(0, count, STEPS):
        places, inside = _column_tile(start, count, inner, STEPS, LANES)
        value = tl.load(x + places, mask=inside, other=float("-inf")).to(tl.float32)
        highest, sums = include(highest, sums, value)
    peak = tl.max(highest, 0)
    scaled = tl.where(highest == float("-inf"), sums, sums * tl.exp(highest - peak[None, :]))
    total = tl.sum(scaled, 0)
    for start in range(0, count, STEPS):
        places, inside = _column_tile(start, count, inner, STEPS, LANES)
        value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        result = _result(value, peak[None, :], total[None, :], LOGARITHM)
        tl.store(y + places, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _gradient(grad, value, total, LOGARITHM: tl.constexpr):
    """softmax: y * (g - sum(g * y)); log_softmax: g - e^y * sum(g)."""
    if LOGARITHM:
        result = grad - tl.exp(value) * total
    else:
        result = value * (grad - total)
    return result


@triton.jit
def softmax_rows_backward(
    grad,  # [rows, count]
    y,  # [rows, count]
    dx,  # [rows, count]
    count,
    LOGARITHM: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_PASS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * count
    columns = tl.arange(0, BLOCK)
    if ONE_PASS:
        inside = columns < count
        upper = tl.load(grad + row + columns, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + row + columns, mask=inside, other=0.0).to(tl.float32)
        total = tl.sum(upper if LOGARITHM else upper * value, 0)
        result = _gradient(upper, value, total, LOGARITHM)
        tl.store(dx + row + columns, result.to(dx.dtype.element_ty), mask=inside)
    else:
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, count, BLOCK):
            places = start + columns
            within = places < count
            upper = tl.load(grad + row + places, mask=within, other=0.0).to(tl.float32)
            if LOGARITHM:
                sums += upper
            else:
                value = tl.load(y + row + places, mask=within, other=0.0).to(tl.float32)
                sums += upper * value
        whole = tl.sum(sums, 0)
        for start in range(0, count, BLOCK):
            places = start + columns
            within = places < count
            upper = tl.load(grad + row + places, mask=within, other=0.0).to(tl.float32)
            value = tl.load(y + row + places, mask=within, other=0.0).to(tl.float32)
            out = _gradient(upper, value, whole, LOGARITHM)
            tl.store(dx + row + places, out.to(dx.dtype.element_ty), mask=within)


@triton.jit
def softmax_columns_backward(
    grad,  # [outer, count, inner]
    y,  # [outer, count, inner]
    dx,  # [outer, count, inner]
    count,
    inner,
    LOGARITHM: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
):
    sums = tl.zeros([STEPS, LANES], tl.float32)
    for start in range(0, count, STEPS):
        places, inside = _column_tile(start, count, inner, STEPS, LANES)
        upper = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
        if LOGARITHM:
            sums += upper
        else:
            sums += upper * tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(sums, 0)
    for start in range(0, count, STEPS):
        places, inside = _column_tile(start, count, inner, STEPS, LANES)
        upper = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
        result = _gradient(upper, value, total[None, :], LOGARITHM)
        tl.store(dx + places, result.to(dx.dtype.element_ty), mask=inside)
