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
    values,  # [rows, chunks, keep]
    indices,  # int64 [rows, chunks, keep]: places in the chunk
    count,
    chunk,
    chunks,
    keep,
    programs,  # of a chunk
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sorts chunks of a row. A value's place is the number of values before it; of equal ones the
    first is before."""
    part = (tl.program_id(0) // programs).to(tl.int64)
    begin = part % chunks * chunk
    length = tl.minimum(chunk, count - begin)
    start_of = source + part // chunks * count + begin
    own = (tl.program_id(0) % programs).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = own < length
    value = tl.load(start_of + own, mask=inside, other=0)
    key = _ordered(value, LARGEST)
    rank = tl.zeros([ROWS], tl.int64)
    for start in range(0, length, BLOCK):
        other = start + tl.arange(0, BLOCK).to(tl.int64)
        present = other < length
        against = tl.load(start_of + other, mask=present, other=0)
        theirs = _ordered(against, LARGEST)[None, :]
        tied = (theirs == key[:, None]) & (other[None, :] < own[:, None])
        before = (theirs < key[:, None]) | tied
        rank += tl.sum((before & present[None, :]).to(tl.int32), 1)
    kept = inside & (rank < keep)
    tl.store(values + part * keep + rank, value, mask=kept)
    tl.store(indices + part * keep + rank, own, mask=kept)


@triton.jit
def merge(
    sorted_values,  # [rows, chunks, length]
    places,  # int64 [rows, chunks, length]: in the chunk
    values,  # [rows, keep]
    indices,  # int64 [rows, keep]
    count,
    chunk,
    chunks,
    length,
    keep,
    programs,  # of a row
    steps,  # that a search in `length` values takes
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Puts sorted chunks together: a value's place is its place in its chunk and the number of
    values before it in every other, found by bisection."""
    row = (tl.program_id(0) // programs).to(tl.int64)
    own = (tl.program_id(0) % programs).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    start_of = sorted_values + row * chunks * length
    mine = own // length
    at = own - mine * length
    inside = (mine < chunks) & (at < count - mine * chunk)
    value = tl.load(start_of + own, mask=inside, other=0)
    key = _ordered(value, LARGEST)
    rank = at
    for other in range(chunks):
        low = tl.zeros([ROWS], tl.int64)
        which = low + other
        high = tl.minimum(length, count - which * chunk)
        for _ in range(steps):
            middle = (low + high) // 2
            open_ = inside & (low < high)
            theirs = tl.load(start_of + which * length + middle, mask=open_, other=0)
            theirs = _ordered(theirs, LARGEST)
            before = (theirs < key) | ((theirs == key) & (mine > which))
            low = tl.where(open_ & before, middle + 1, low)
            high = tl.where(open_ & (before == 0), middle, high)
        rank += tl.where(mine == which, 0, low)
    kept = inside & (rank < keep)
    place = tl.load(places + row * chunks * length + own, mask=kept, other=0) + mine * chunk
    tl.store(values + row * keep + rank, value, mask=kept)
    tl.store(indices + row * keep + rank, place, mask=kept)
