"""Reading and writing rows and elements by index on the device. See README.md.

Tensors are contiguous: [outer, size, inner] is what is indexed, along its middle. An index outside
of lowest..size-1 reads zeros, writes nothing, and raises `flag` where there is one; negative ones
count from the end.
"""

import triton
import triton.language as tl

POISON = tl.constexpr(-(2**62))


@triton.jit
def _checked(index, inside, lowest, size, flag):
    """The index counted from the start, and whether it may be used."""
    known = (index >= lowest) & (index < size)
    if flag is not None:
        tl.store(flag + tl.zeros_like(index), 1, mask=inside & (known == 0))
    return tl.where(index < 0, index + size, index), inside & known


@triton.jit
def take(
    source,  # [outer, size, inner]
    index,  # [items]
    out,  # [outer, items, inner]
    flag,
    rows,  # outer * items
    items,
    inner,
    lowest,
    size,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * INNER + tl.arange(0, INNER)
    outer = row // items
    inside = row < rows
    given = tl.load(index + (row - outer * items), mask=inside, other=0).to(tl.int64)
    place, usable = _checked(given, inside, lowest, size, flag)
    valid = (column < inner)[None, :]
    at = (outer * size + place)[:, None] * inner + column[None, :]
    value = tl.load(source + at, mask=usable[:, None] & valid, other=0)
    tl.store(out + row[:, None] * inner + column[None, :], value, mask=inside[:, None] & valid)


@triton.jit
def put(
    target,  # [outer, size, inner]
    index,  # [items]
    source,  # [outer, items, inner], or one value
    flag,
    rows,
    items,
    inner,
    lowest,
    size,
    row_step,  # inner, or 0
    column_step,  # 1, or 0
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * INNER + tl.arange(0, INNER)
    outer = row // items
    inside = row < rows
    given = tl.load(index + (row - outer * items), mask=inside, other=0).to(tl.int64)
    place, usable = _checked(given, inside, lowest, size, flag)
    mask = usable[:, None] & (column < inner)[None, :]
    value = tl.load(source + row[:, None] * row_step + column[None, :] * column_step, mask=mask,
                    other=0)  # fmt: skip
    tl.store(target + (outer * size + place)[:, None] * inner + column[None, :], value, mask=mask)


@triton.jit
def chain(
    index,  # [items]
    following,  # int32 [items]: the next item of the same index, or -1
    heads,  # int32 [items]: 1 for the first item of an index that may be used
    flag,
    items,
    lowest,
    size,
    skipped,  # a place that nothing is added to; -1: none
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < items
    given = tl.load(index + row, mask=inside, other=0).to(tl.int64)
    own, usable = _checked(given, inside, lowest, size, flag)
    later = tl.full([ROWS], 2147483647, tl.int64)
    earlier = tl.zeros([ROWS], tl.int32)
    for start in range(0, items, BLOCK):
        other = start + tl.arange(0, BLOCK).to(tl.int64)
        present = other < items
        seen = tl.load(index + other, mask=present, other=0).to(tl.int64)
        present = present & (seen >= lowest) & (seen < size)
        seen = tl.where(seen < 0, seen + size, seen)
        same = (own[:, None] == seen[None, :]) & present[None, :]
        behind = same & (other[None, :] > row[:, None])
        later = tl.minimum(later, tl.min(tl.where(behind, other[None, :], 2147483647), 1))
        before = same & (other[None, :] < row[:, None])
        earlier = tl.maximum(earlier, tl.max(before.to(tl.int32), 1))
    first = usable & (own != skipped) & (earlier == 0)
    tl.store(following + row, tl.where(later == 2147483647, -1, later).to(tl.int32), mask=inside)
    tl.store(heads + row, first.to(tl.int32), mask=inside)


@triton.jit
def accumulate(
    target,  # [outer, size, inner]
    index,  # [items]
    following,
    heads,
    source,  # [outer, items, inner]
    rows,
    items,
    inner,
    size,
    scale,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
):
    """target[o, index[i]] += scale * source[o, i]: the first item of an index adds all of them, in
    their order."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * INNER + tl.arange(0, INNER)
    outer = row // items
    item = row - outer * items
    inside = row < rows
    active = inside & (tl.load(heads + item, mask=inside, other=0) > 0)
    place = tl.load(index + item, mask=active, other=0).to(tl.int64)
    place = tl.where(place < 0, place + size, place)
    valid = (column < inner)[None, :]
    at = target + (outer * size + place)[:, None] * inner + column[None, :]
    written = active[:, None] & valid
    total = tl.load(at, mask=written, other=0)
    if total.dtype.is_floating():
        if total.dtype.primitive_bitwidth < 32:
            total = total.to(tl.float32)
    else:
        total = total.to(tl.int64)
    factor = scale.to(total.dtype)
    while tl.max(active.to(tl.int32), 0) > 0:
        here = source + (outer * items + item)[:, None] * inner + column[None, :]
        value = tl.load(here, mask=active[:, None] & valid, other=0).to(total.dtype)
        total = tl.where(active[:, None], total + value * factor, total)
        further = tl.load(following + item, mask=active, other=-1).to(tl.int64)
        active = active & (further >= 0)
        item = tl.where(active, further, item)
    tl.store(at, total.to(target.dtype.element_ty), mask=written)


@triton.jit
def gather(
    source,  # [outer, size, inner]
    index,  # [outer, items, inner]
    out,  # [outer, items, inner]
    flag,
    count,
    items,
    inner,
    lowest,
    size,
    BLOCK: tl.constexpr,
):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    row = element // inner
    outer = row // items
    given = tl.load(index + element, mask=inside, other=0).to(tl.int64)
    place, usable = _checked(given, inside, lowest, size, flag)
    at = (outer * size + place) * inner + (element - row * inner)
    tl.store(out + element, tl.load(source + at, mask=usable, other=0), mask=inside)


@triton.jit
def scatter(
    target,  # [outer, size, inner]
    index,  # [outer, items, inner]
    source,  # [outer, items, inner], or one value
    flag,
    count,
    items,
    inner,
    lowest,
    size,
    step,  # 1, or 0
    BLOCK: tl.constexpr,
):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    row = element // inner
    outer = row // items
    given = tl.load(index + element, mask=inside, other=0).to(tl.int64)
    place, usable = _checked(given, inside, lowest, size, flag)
    at = (outer * size + place) * inner + (element - row * inner)
    tl.store(target + at, tl.load(source + element * step, mask=usable, other=0), mask=usable)


@triton.jit
def scatter_add(
    target,  # [outer, size, inner]
    index,  # [outer, items, inner]
    source,  # [outer, items, inner]
    flag,
    lanes,  # outer * inner
    items,
    inner,
    lowest,
    size,
    LANES: tl.constexpr,
):
    """A lane has a column of its own and adds its items one after the other."""
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = lane < lanes
    outer = lane // inner
    column = lane - outer * inner
    for item in range(items):
        at = (outer * items + item) * inner + column
        given = tl.load(index + at, mask=inside, other=0).to(tl.int64)
        place, usable = _checked(given, inside, lowest, size, flag)
        there = target + (outer * size + place) * inner + column
        value = tl.load(source + at, mask=usable, other=0)
        total = tl.load(there, mask=usable, other=0) + value
        tl.store(there, total, mask=usable)
        tl.debug_barrier()  # a load may run on another thread than the store before it


@triton.jit
def flatten(
    index,  # [count]
    out,  # int64 [count]
    flag,
    count,
    lowest,
    size,
    step,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds an index of one dimension to the places in several; what may not be used stays below
    0."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    given = tl.load(index + element, mask=inside, other=0).to(tl.int64)
    place, usable = _checked(given, inside, lowest, size, flag)
    total = tl.where(usable, place * step, POISON)
    if not FIRST:
        before = tl.load(out + element, mask=inside, other=0)
        total = tl.where(before < 0, POISON, before) + total
    tl.store(out + element, total, mask=inside)


@triton.jit
def _found(value):
    """1 for what is not 0, NaN included."""
    if value.dtype.is_floating() and value.dtype.primitive_bitwidth < 32:
        result = value.to(tl.float32) != 0
    else:
        result = value != 0
    return result.to(tl.int64)


@triton.jit
def count_blocks(source, counts, count, BLOCK: tl.constexpr):
    """How many values of every block are not 0."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + element, mask=element < count, other=0)
    tl.store(counts + tl.program_id(0), tl.sum(_found(value), 0))


@triton.jit
def positions(
    source,
    ends,  # int64: values not 0 up to the end of every block
    out,  # int64: where they are
    count,
    BLOCK: tl.constexpr,
):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + element, mask=element < count, other=0)
    found = _found(value)
    rank = tl.load(ends + tl.program_id(0)) - tl.sum(found, 0) + tl.cumsum(found, 0) - 1
    tl.store(out + rank, element, mask=found > 0)


@triton.jit
def coordinate(places, out, count, step, size, divisor, BLOCK: tl.constexpr):
    """The index in one dimension of places in a contiguous tensor."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    place = tl.load(places + element, mask=inside, other=0) // divisor
    tl.store(out + element * step, place % size, mask=inside)


@triton.jit
def triangle(
    source,  # [matrices, rows, columns]
    out,
    count,
    rows,
    columns,
    diagonal,
    UPPER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    line = element // columns
    distance = (element - line * columns) - line % rows
    if UPPER:
        kept = distance >= diagonal
    else:
        kept = distance <= diagonal
    inside = element < count
    tl.store(out + element, tl.load(source + element, mask=inside & kept, other=0), mask=inside)
