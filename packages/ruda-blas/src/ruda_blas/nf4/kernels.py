"""NF4 on the device. See README.md for the layout and the mathematics.

A code becomes a value by a look-up in the 16 values of the codebook: through the L1 cache, or, in
products, through shared memory, where a warp's look-ups never conflict. Products decode tiles of
the weight into registers, in x's dtype (float32 for float32), and multiply them like dense ones;
the weight never exists as a whole.
"""

import triton
import triton.language as tl

from ruda_runtime.kernel.language import dot

from ..gemm.kernels import tile_of


@triton.jit
def _place(flat, cols, row_stride, col_stride, CONTIGUOUS: tl.constexpr):
    """Where flat row-major index `flat` of a matrix lies."""
    if CONTIGUOUS:
        place = flat
    else:
        row = flat // cols
        place = row * row_stride + (flat - row * cols) * col_stride
    return place


@triton.jit
def find_nonfinite(
    weight,  # [rows, cols], any strides
    found,  # int64 [programs]: the first flat index that is NaN or infinite, else count
    count,
    cols,
    row_stride,
    col_stride,
    CONTIGUOUS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = _place(flat, cols, row_stride, col_stride, CONTIGUOUS)
    value = tl.load(weight + place, mask=flat < count, other=0.0).to(tl.float32)
    tl.store(found + tl.program_id(0), tl.min(tl.where(tl.abs(value) < float("inf"), count, flat)))


@triton.jit
def least(found, programs, count, result, BLOCK: tl.constexpr):
    """result[0] = the least of the numbers, at most count; one program."""
    lowest = tl.full([BLOCK], 0, tl.int64) + count
    for start in range(0, programs, BLOCK):
        places = start + tl.arange(0, BLOCK)
        more = tl.load(found + places, mask=places < programs, other=9223372036854775807)
        lowest = tl.minimum(lowest, more)
    tl.store(result, tl.min(lowest))


@triton.jit
def quantize(
    weight,  # [rows, cols], any strides
    codebook,  # float32 [16], rising
    packed,  # uint8 [ceil(count / 2)]
    scales,  # float32 [blocks]
    count,
    cols,
    row_stride,
    col_stride,
    block_size,
    blocks,
    CONTIGUOUS: tl.constexpr,
    BLOCKS: tl.constexpr,
    HALF: tl.constexpr,
):
    """BLOCKS blocks of the flat weight, 2 * HALF of their values at a time."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    largest = tl.zeros([BLOCKS, HALF], tl.float32)
    for start in range(0, block_size, 2 * HALF):
        within = start + 2 * tl.arange(0, HALF)
        flat = block[:, None] * block_size + within[None, :]
        for odd in tl.static_range(2):
            inside = (within < block_size)[None, :] & (flat + odd < count)
            place = _place(flat + odd, cols, row_stride, col_stride, CONTIGUOUS)
            value = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(value))
    scale = tl.max(largest, 1)
    tl.store(scales + block, scale, mask=block < blocks)
    # The reciprocal of a subnormal overflows: such blocks are lifted first, which is exact.
    lift = tl.where(scale < 7.52316384526264e-37, 1.2676506002282294e30, 1.0)
    inverse = tl.where(scale > 0.0, tl.div_rn(1.0, tl.where(scale > 0.0, scale * lift, 1.0)), 0.0)
    for start in range(0, block_size, 2 * HALF):
        within = start + 2 * tl.arange(0, HALF)
        flat = block[:, None] * block_size + within[None, :]
        known = (within < block_size)[None, :] & (flat < count)
        byte = tl.zeros([BLOCKS, HALF], tl.int32)
        for odd in tl.static_range(2):
            place = _place(flat + odd, cols, row_stride, col_stride, CONTIGUOUS)
            value = tl.load(weight + place, mask=known & (flat + odd < count), other=0.0)
            ratio = (value.to(tl.float32) * lift[:, None]) * inverse[:, None]
            code = tl.zeros([BLOCKS, HALF], tl.int32)
            for i in range(15):
                middle = (tl.load(codebook + i) + tl.load(codebook + i + 1)) * 0.5
                code += tl.where(ratio > middle, 1, 0)
            byte = byte * 16 + code
        tl.store(packed + flat // 2, byte.to(tl.uint8), mask=known)


@triton.jit
def _scale_index(flat, block_size, shift, POWER: tl.constexpr):
    """flat // block_size; by a shift where that is a power of two."""
    if POWER:
        index = flat >> shift
    else:
        index = flat // block_size
    return index


@triton.jit
def dequantize(
    packed,
    scales,
    codebook,
    weight,  # [rows, cols], any strides
    count,
    cols,
    row_stride,
    col_stride,
    block_size,
    shift,
    CONTIGUOUS: tl.constexpr,
    POWER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = flat < count
    byte = tl.load(packed + (flat >> 1), mask=inside, other=0).to(tl.int32)
    code = tl.where((flat & 1) == 0, byte >> 4, byte & 15)
    index = _scale_index(flat, block_size, shift, POWER)
    value = tl.load(codebook + code) * tl.load(scales + index, mask=inside, other=0.0)
    place = _place(flat, cols, row_stride, col_stride, CONTIGUOUS)
    tl.store(weight + place, value.to(weight.dtype.element_ty), mask=inside)


@triton.jit
def _look_up(table, code, R: tl.constexpr, C: tl.constexpr):
    """table[code] for codes [R, C]."""
    return tl.reshape(tl.gather(table, tl.reshape(code, [R * C]), 0), [R, C])


@triton.jit
def _decode(
    packed,
    scales,
    table,  # the codebook, [16]
    row,  # [ROWS], int64
    first_col,
    rows,
    cols,
    half_cols,
    block_size,
    shift,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PAIRED: tl.constexpr,  # an even number of columns, a block size that is a power of two
    ONE_SCALE: tl.constexpr,  # the columns of a row share their scale
):
    """The weight's rows `row` and columns first_col .. first_col + COLS as float32 [ROWS, COLS], 0
    outside of the weight; first_col is even."""
    valid = (row < rows)[:, None]
    if PAIRED:
        half = first_col // 2 + tl.arange(0, COLS // 2)
        inside = valid & (half < half_cols)[None, :]
        place = row[:, None] * half_cols + half[None, :]
        byte = tl.load(packed + place, mask=inside, other=0).to(tl.int32)
        if ONE_SCALE:
            block = (row * cols + first_col) >> shift
            scale = tl.load(scales + block, mask=row < rows, other=0.0)[:, None]
        else:
            scale = tl.load(scales + ((2 * place) >> shift), mask=inside, other=0.0)
        high = _look_up(table, byte >> 4, ROWS, COLS // 2) * scale
        low = _look_up(table, byte & 15, ROWS, COLS // 2) * scale
        if ONE_SCALE:  # else the scale is already 0 outside
            high = tl.where(inside, high, 0.0)
            low = tl.where(inside, low, 0.0)
        value = tl.interleave(high, low)
    else:
        each = first_col + tl.arange(0, COLS)
        known = valid & (each < cols)[None, :]
        index = row[:, None] * cols + each[None, :]
        pair = tl.load(packed + (index >> 1), mask=known, other=0).to(tl.int32)
        code = tl.where((index & 1) == 0, pair >> 4, pair & 15)
        factor = tl.load(scales + index // block_size, mask=known, other=0.0)
        value = _look_up(table, code, ROWS, COLS) * factor
    return value


@triton.jit
def product(
    x,  # [M, K], any strides; K is the weight's columns (forward) or rows
    packed,
    scales,
    codebook,
    bias,  # [N] or None
    y,  # [M, N], any strides
    update_x,  # [M, rank] or None, any strides
    update_w,  # [rank, N]
    M,
    rows,  # of the weight
    cols,
    half_cols,
    block_size,
    shift,
    rank,
    x_m,
    x_k,
    y_m,
    y_n,
    bias_n,
    ux_m,
    ux_r,
    uw_r,
    uw_n,
    FORWARD: tl.constexpr,  # y = x @ W^T, else y = x @ W
    PAIRED: tl.constexpr,
    ONE_SCALE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    RANK: tl.constexpr,
    GROUP: tl.constexpr,
):
    if FORWARD:
        N = rows
        K = cols
    else:
        N = cols
        K = rows
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile_m, tile_n = tile_of(tl.program_id(0), tiles_m, tiles_n, GROUP)
    m = tile_m * BM + tl.arange(0, BM)
    first_n = tile_n * BN
    n = first_n + tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_m = (m < M)[:, None]
    in_n = (n < N)[None, :]
    x_places = x + m.to(tl.int64)[:, None] * x_m + k.to(tl.int64)[None, :] * x_k
    table = tl.load(codebook + tl.arange(0, 16))
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        left = tl.load(x_places, mask=in_m & (k[None, :] < K - start), other=0.0)
        if FORWARD:
            weight = _decode(
                packed, scales, table, n.to(tl.int64), start, rows, cols, half_cols, block_size,
                shift, BN, BK, PAIRED, ONE_SCALE,
            )  # fmt: skip
            right = tl.trans(weight.to(x.dtype.element_ty))
        else:
            weight = _decode(
                packed, scales, table, (start + k).to(tl.int64), first_n, rows, cols, half_cols,
                block_size, shift, BK, BN, PAIRED, ONE_SCALE,
            )  # fmt: skip
            right = weight.to(x.dtype.element_ty)
        total = dot(left, right, total)
        x_places += BK * x_k
    if update_x is not None:
        for start in range(0, rank, RANK):
            r = start + tl.arange(0, RANK)
            known = r < rank
            ux = update_x + m.to(tl.int64)[:, None] * ux_m + r.to(tl.int64)[None, :] * ux_r
            uw = update_w + r.to(tl.int64)[:, None] * uw_r + n.to(tl.int64)[None, :] * uw_n
            ux_tile = tl.load(ux, mask=in_m & known[None, :], other=0.0)
            uw_tile = tl.load(uw, mask=known[:, None] & in_n, other=0.0)
            if update_x.dtype.element_ty != update_w.dtype.element_ty:
                total = dot(ux_tile.to(tl.float32), uw_tile.to(tl.float32), total)
            else:
                total = dot(ux_tile, uw_tile, total)
    if bias is not None:
        column = bias + n.to(tl.int64) * bias_n
        total += tl.load(column, mask=n < N, other=0.0).to(tl.float32)[None, :]
    places = y + m.to(tl.int64)[:, None] * y_m + n.to(tl.int64)[None, :] * y_n
    tl.store(places, total.to(y.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def gemv(
    x,  # [M, cols], any strides; M <= ROWS
    packed,
    scales,
    codebook,
    bias,  # [rows] or None
    y,  # [M, rows], any strides
    update_x,  # [M, rank] or None, any strides
    update_w,  # [rank, rows]
    M,
    rows,
    cols,
    half_cols,
    block_size,
    shift,
    rank,
    x_m,
    x_k,
    y_m,
    y_n,
    bias_n,
    ux_m,
    ux_r,
    uw_r,
    uw_n,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    HALF: tl.constexpr,
):
    """y = x @ W^T for a few rows of x, in float32: each byte of the weight is read once. Wants an
    even number of columns and a block size that is a power of two."""
    m = tl.arange(0, ROWS)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    valid = (n < rows)[:, None]
    x_rows = x + m.to(tl.int64)[:, None] * x_m
    sums = tl.zeros([ROWS, BN, HALF], tl.float32)
    for start in range(0, cols, 2 * HALF):
        half = start // 2 + tl.arange(0, HALF)
        inside = valid & (half < half_cols)[None, :]
        place = n.to(tl.int64)[:, None] * half_cols + half[None, :]
        byte = tl.load(packed + place, mask=inside, other=0).to(tl.int32)
        scale = tl.load(scales + ((2 * place) >> shift), mask=inside, other=0.0)
        high = tl.load(codebook + (byte >> 4)) * scale
        low = tl.load(codebook + (byte & 15)) * scale
        each = start + tl.arange(0, 2 * HALF)
        known = (m < M)[:, None] & (each < cols)[None, :]
        values = tl.load(x_rows + each.to(tl.int64)[None, :] * x_k, mask=known, other=0.0)
        pairs = tl.reshape(values.to(tl.float32), [ROWS, HALF, 2])
        even, odd = tl.split(pairs)
        sums += even[:, None, :] * high[None, :, :] + odd[:, None, :] * low[None, :, :]
    total = tl.sum(sums, 2)
    if update_x is not None:
        for r in range(rank):
            step = tl.cast(r, tl.int64)
            ux = update_x + m.to(tl.int64) * ux_m + step * ux_r
            uw = update_w + step * uw_r + n.to(tl.int64) * uw_n
            left = tl.load(ux, mask=m < M, other=0.0)
            right = tl.load(uw, mask=n < rows, other=0.0)
            total += left.to(tl.float32)[:, None] * right.to(tl.float32)[None, :]
    if bias is not None:
        column = bias + n.to(tl.int64) * bias_n
        total += tl.load(column, mask=n < rows, other=0.0).to(tl.float32)[None, :]
    places = y + m.to(tl.int64)[:, None] * y_m + n.to(tl.int64)[None, :] * y_n
    inside = (m < M)[:, None] & (n < rows)[None, :]
    tl.store(places, total.to(y.dtype.element_ty), mask=inside)
