"""Sorting on the device by ranks. See README.md."""

import triton
import triton.language as tl


@triton.jit
def _ordered(value, LARGEST: tl.constexpr):
    """An int64 that compares as the values do; NaN is the largest, -0 equals 0."""
    if value.dtype.is_floating():
        if value.dtype.primitive_bitwidth == 64:
            wide = value + 0.0
            bits = wide.to(tl.int64, bitcast=True)
            key = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
        else:
            wide = value.to(tl.float32) + 0.0
            bits = wide.to(tl.int32, bitcast=True).to(tl.int64)
            key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        key = tl.where(wide != wide, 0x7FFFFFFFFFFFFFFF, key)
    else:
        key = value.to(tl.int64)
    if LARGEST:
        key = -1 - key
    return key


@triton.jit
def sort(
    source,  # [rows, count]
    values,  # [rows, keep]
    indices,  # int64 [rows, keep]
    count,
    keep,
    programs,  # of a row
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A value's place is the number of values before it; of equal ones the first is before."""
    row = (tl.program_id(0) // programs).to(tl.int64)
    own = (tl.program_id(0) % programs).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = own < count
    value = tl.load(source + row * count + own, mask=inside, other=0)
    key = _ordered(value, LARGEST)
    rank = tl.zeros([ROWS], tl.int64)
    for start in range(0, count, BLOCK):
        other = start + tl.arange(0, BLOCK).to(tl.int64)
        present = other < count
        against = tl.load(source + row * count + other, mask=present, other=0)
        theirs = _ordered(against, LARGEST)[None, :]
        before = (theirs < key[:, None]) | (
            (theirs == key[:, None]) & (other[None, :] < own[:, None])
        )
        rank += tl.sum((before & present[None, :]).to(tl.int32), 1)
    kept = inside & (rank < keep)
    tl.store(values + row * keep + rank, value, mask=kept)
    tl.store(indices + row * keep + rank, own, mask=kept)
