"""Reductions of strided tensors on the device. See README.md.

A source has up to four kept and four reduced dimensions, the fastest first. Tiles are rows of
reduced elements, or columns (ACROSS) where the kept dimension is the one that is contiguous.
Floats are accumulated in float32 (float64 in float64), integers and bools in int64.
"""

import triton
import triton.language as tl

UNSET = tl.constexpr(2**63 - 1)
LEAST = tl.constexpr(-(2**63))


@triton.jit
def offset(
    linear, size0, size1, size2, stride0, stride1, stride2, stride3, DIMS: tl.constexpr
):  # fmt: skip
    """Where element number `linear` lies."""
    if DIMS == 1:
        result = linear * stride0
    else:
        rest = linear // size0
        result = (linear - rest * size0) * stride0
        further = rest // size1
        result += (rest - further * size1) * stride1
        last = further // size2
        result += (further - last * size2) * stride2 + last * stride3
    return result


@triton.jit
def wide(value):
    """float32 for shorter floats, int64 for integers and bools."""
    if value.dtype.is_floating():
        if value.dtype.primitive_bitwidth < 32:
            result = value.to(tl.float32)
        else:
            result = value
    else:
        result = value.to(tl.int64)
    return result


@triton.jit
def _mapped(value, parameter, MAP: tl.constexpr):
    number = wide(value)
    if MAP == "nonzero":
        result = (number != 0).to(tl.int64)
    elif MAP == "absolute":
        result = tl.abs(number)
    elif MAP == "square":
        result = number * number
    elif MAP == "power":
        result = tl.exp2(tl.log2(tl.abs(number)) * parameter.to(number.dtype))
    else:
        result = number
    return result


@triton.jit
def _blank(like, COMBINE: tl.constexpr):
    """What changes nothing."""
    if COMBINE == "sum":
        result = tl.zeros_like(like)
    elif COMBINE == "prod":
        result = tl.full(like.shape, 1, like.dtype)
    elif like.dtype.is_floating():
        if COMBINE == "max":
            result = tl.full(like.shape, float("-inf"), like.dtype)
        else:
            result = tl.full(like.shape, float("inf"), like.dtype)
    else:
        if COMBINE == "max":
            result = tl.full(like.shape, LEAST, tl.int64)
        else:
            result = tl.full(like.shape, UNSET, tl.int64)
    return result


@triton.jit
def _combined(total, value, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        result = total + value
    elif COMBINE == "prod":
        result = total * value
    elif COMBINE == "max":
        result = tl.where((value > total) | (value != value), value, total)
    else:
        result = tl.where((value < total) | (value != value), value, total)
    return result


@triton.jit
def _multiply(left, right):
    return left * right


@triton.jit
def _folded(total, AXIS: tl.constexpr, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        result = tl.sum(total, AXIS)
    elif COMBINE == "prod":
        result = tl.reduce(total, AXIS, _multiply)
    else:
        strange = total != total
        known = tl.where(strange, _blank(total, COMBINE), total)
        if COMBINE == "max":
            result = tl.max(known, AXIS)
        else:
            result = tl.min(known, AXIS)
        if total.dtype.is_floating():
            result = tl.where(tl.max(strange.to(tl.int32), AXIS) > 0, float("nan"), result)
    return result


@triton.jit
def _finished(total, parameter, FINISH: tl.constexpr):
    if FINISH == "divide":
        result = total / parameter.to(total.dtype)
    elif FINISH == "sqrt":
        result = tl.sqrt(total)
    elif FINISH == "root":
        result = tl.exp2(tl.log2(total) / parameter.to(total.dtype))
    else:
        result = total
    return result


@triton.jit
def reduce(
    source,
    out,
    outputs,
    count,  # reduced elements of an output
    part,  # of which a program takes so many
    part_stride,  # between the results of two parts
    parameter,
    kept0, kept1, kept2,
    in0, in1, in2, in3,
    out0, out1, out2, out3,
    reduced0, reduced1, reduced2,
    step0, step1, step2, step3,
    MAP: tl.constexpr,
    COMBINE: tl.constexpr,
    FINISH: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ACROSS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    begin = tl.program_id(1).to(tl.int64) * part
    end = tl.minimum(begin + part, count)
    steps = tl.arange(0, BLOCK)
    if ACROSS:
        rows, lanes = row[None, :], steps[:, None]
        empty = tl.zeros([BLOCK, ROWS], source.dtype.element_ty)
    else:
        rows, lanes = row[:, None], steps[None, :]
        empty = tl.zeros([ROWS, BLOCK], source.dtype.element_ty)
    base = source + offset(rows, kept0, kept1, kept2, in0, in1, in2, in3, DIMS)
    blank = _blank(_mapped(empty, parameter, MAP), COMBINE)
    total = blank
    for start in range(begin, end, BLOCK):
        step = start + lanes.to(tl.int64)
        inside = (step < end) & (rows < outputs)
        place = offset(step, reduced0, reduced1, reduced2, step0, step1, step2, step3, DIMS)
        value = _mapped(tl.load(base + place, mask=inside, other=0), parameter, MAP)
        total = _combined(total, tl.where(inside, value, blank), COMBINE)
    result = _finished(_folded(total, 0 if ACROSS else 1, COMBINE), parameter, FINISH)
    place = offset(row, kept0, kept1, kept2, out0, out1, out2, out3, DIMS)
    place += tl.program_id(1).to(tl.int64) * part_stride
    tl.store(out + place, result.to(out.dtype.element_ty), mask=row < outputs)


@triton.jit
def _better(value, best, LARGEST: tl.constexpr):
    """NaN is better than every number."""
    if LARGEST:
        result = value > best
    else:
        result = value < best
    return result | ((value != value) & (best == best))


@triton.jit
def locate(
    source,
    places,  # the indices of what `source` holds, in its layout; absent: its own
    values,  # may be absent
    indices,
    outputs,
    count,
    part,
    part_stride,
    kept0, kept1, kept2,
    in0, in1, in2, in3,
    out0, out1, out2, out3,
    step0,
    LARGEST: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ACROSS: tl.constexpr,
):  # fmt: skip
    """The largest or least value along one dimension and where it is first."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    begin = tl.program_id(1).to(tl.int64) * part
    end = tl.minimum(begin + part, count)
    steps = tl.arange(0, BLOCK)
    if ACROSS:
        rows, lanes = row[None, :], steps[:, None]
        best = wide(tl.zeros([BLOCK, ROWS], source.dtype.element_ty))
        found = tl.full([BLOCK, ROWS], UNSET, tl.int64)
    else:
        rows, lanes = row[:, None], steps[None, :]
        best = wide(tl.zeros([ROWS, BLOCK], source.dtype.element_ty))
        found = tl.full([ROWS, BLOCK], UNSET, tl.int64)
    base = offset(rows, kept0, kept1, kept2, in0, in1, in2, in3, DIMS)
    for start in range(begin, end, BLOCK):
        step = start + lanes.to(tl.int64)
        inside = (step < end) & (rows < outputs)
        place = base + step * step0
        value = wide(tl.load(source + place, mask=inside, other=0))
        if places is None:
            index = step + tl.zeros_like(found)
        else:
            index = tl.load(places + place, mask=inside, other=0)
        taken = inside & (_better(value, best, LARGEST) | (found == UNSET))
        best = tl.where(taken, value, best)
        found = tl.where(taken, index, found)
    AXIS: tl.constexpr = 0 if ACROSS else 1
    COMBINE: tl.constexpr = "max" if LARGEST else "min"
    known = tl.where(found == UNSET, _blank(best, COMBINE), best)
    peak = _folded(known, AXIS, COMBINE)
    whole = tl.expand_dims(peak, AXIS)
    chosen = (known == whole) | ((known != known) & (whole != whole))
    place = offset(row, kept0, kept1, kept2, out0, out1, out2, out3, DIMS)
    place += tl.program_id(1).to(tl.int64) * part_stride
    first = tl.min(tl.where(chosen, found, UNSET), AXIS)
    tl.store(indices + place, first, mask=row < outputs)
    if values is not None:
        tl.store(values + place, peak.to(values.dtype.element_ty), mask=row < outputs)


@triton.jit
def cumulate(
    source,  # [outer, count, inner]
    out,  # [outer, count, inner]
    rows,  # outer * inner
    count,
    inner,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums of all values so far."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    outer = row // inner
    base = outer * count * inner + (row - outer * inner)
    carry = tl.sum(wide(tl.zeros([ROWS, BLOCK], source.dtype.element_ty)), 1)
    for start in range(0, count, BLOCK):
        step = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = (row < rows)[:, None] & (step < count)[None, :]
        place = base[:, None] + step[None, :] * inner
        value = wide(tl.load(source + place, mask=inside, other=0))
        total = tl.cumsum(value, 1) + carry[:, None]
        tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)
        carry += tl.sum(value, 1)
