"""Attention in flash form on the device. See README.md for the mathematics.

A block's rows are queries times the heads of a group, so that keys and values are read once for all
of them and one query (decoding) still fills a block. Scores are kept in base 2. A pair that is not
seen has the weight 0, but 0 times NaN is NaN: where a block's sums are not finite in the end, they
are taken again pair by pair. Finite inputs never come there.
"""

import triton
import triton.language as tl

from ruda_runtime.kernel.language import dot

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _lengths(sequence, cu_q, cu_k, q_length, k_length):
    """Where a sequence begins in packed tensors, its lengths, and its first query among all."""
    if cu_q is not None:
        q_start = tl.load(cu_q + sequence)
        q_count = tl.load(cu_q + sequence + 1) - q_start
        k_start = tl.load(cu_k + sequence)
        k_count = tl.load(cu_k + sequence + 1) - k_start
        before = q_start.to(tl.int64)
    else:
        q_start = sequence * 0
        k_start = sequence * 0
        q_count = sequence * 0 + q_length
        k_count = sequence * 0 + k_length
        before = sequence.to(tl.int64) * q_length
    return q_start.to(tl.int64), q_count, k_start.to(tl.int64), k_count, before


@triton.jit
def _mask_tile(score, seen, mask, places, MASK: tl.constexpr):
    """Applies a mask: 1 is a byte (0: not seen), 2 an addend (-inf: not seen)."""
    if MASK == 1:
        seen = seen & (tl.load(mask + places, mask=seen, other=0) != 0)
    if MASK == 2:
        bias = tl.load(mask + places, mask=seen, other=0.0).to(tl.float32)
        seen = seen & (bias != float("-inf"))
        score = score + bias * LOG2E
    return score, seen


@triton.jit
def _row_block(block, ratio, group, q_count, k_count, bottom_right, BM: tl.constexpr):
    """A block's rows: query, head, whether they exist; how far behind a query its key stands; and
    the block's first and last query."""
    r = block * BM + tl.arange(0, BM)
    query = r // ratio
    head = (group * ratio + r % ratio).to(tl.int64)
    shift = tl.where(bottom_right != 0, k_count - q_count, 0)
    first = block * BM // ratio
    last = tl.minimum((block * BM + BM - 1) // ratio, q_count - 1)
    return query, head, query < q_count, shift, first, last


@triton.jit
def _visible(score, exists, position, key, left, right, mask, places, MASK: tl.constexpr):
    """Applies the band and the mask to the pairs that exist."""
    seen = exists & (key >= position - left) & (key <= position + right)
    return _mask_tile(score, seen, mask, places, MASK)


@triton.jit
def _any_not_finite(values):
    return tl.sum(tl.sum(tl.where(tl.abs(values) < float("inf"), 0, 1), 1), 0) > 0


@triton.jit
def forward(
    q,  # [B, Tq, H, D] or [total, H, D]
    k,  # [B, Tk, G, D]
    v,  # [B, Tk, G, Dv]
    mask,  # [B, H, Tq, Tk] by strides, or None
    cu_q,  # int32 [N + 1] or None
    cu_k,
    out,  # [B, Tq, H, Dv]
    lse,  # float32 or None
    partial,  # float32 [splits, queries * H, Dv], or None: out is written
    stats,  # float32 [splits, queries * H, 2]: peak in base 2 and sum
    heads,
    groups,
    q_length,
    k_length,
    all_rows,  # queries * H
    width,
    value_width,
    scale,
    left,
    right,
    bottom_right,
    blocks,  # of rows, for every sequence and group
    q_batch,
    q_row,
    q_head,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    out_batch,
    out_row,
    out_head,
    lse_batch,
    lse_row,
    lse_head,
    mask_batch,
    mask_head,
    mask_row,
    mask_key,
    MASK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
):
    pair = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks  # with a causal mask the longest first
    sequence = pair // groups
    group = pair % groups
    q_start, q_count, k_start, k_count, before = _lengths(sequence, cu_q, cu_k, q_length, k_length)
    query, head, valid, shift, first, last = _row_block(
        block, heads // groups, group, q_count, k_count, bottom_right, BM
    )
    position = query + shift
    steps = tl.cdiv(tl.cdiv(k_count, BN), tl.num_programs(1)) * BN  # keys of a split
    begin = tl.maximum(first + shift - left, tl.program_id(1) * steps)
    begin = tl.maximum(begin, 0) // BN * BN
    end = tl.minimum(last + shift + right + 1, (tl.program_id(1) + 1) * steps)
    end = tl.minimum(end, k_count)
    end = tl.where(first < q_count, end, 0)

    d = tl.arange(0, BD)
    e = tl.arange(0, BV)
    batch = sequence.to(tl.int64)
    row = q_start + query
    q_places = batch * q_batch + row * q_row + head * q_head
    q_inside = valid[:, None] & (d < width)[None, :]
    q_tile = tl.load(q + q_places[:, None] + d[None, :], mask=q_inside, other=0.0)
    k_base = k + batch * k_batch + group.to(tl.int64) * k_head
    v_base = v + batch * v_batch + group.to(tl.int64) * v_head
    mask_places = batch * mask_batch + head * mask_head + query.to(tl.int64) * mask_row
    peak = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, BV], tl.float32)
    for start in range(begin, end, BN):
        key = start + tl.arange(0, BN)
        known = key < k_count
        k_row_of = (k_start + key) * k_row
        k_tile = tl.load(k_base + k_row_of[None, :] + d[:, None],
                         mask=known[None, :] & (d < width)[:, None], other=0.0)  # fmt: skip
        score = dot(q_tile, k_tile) * (scale * LOG2E)
        places = mask_places[:, None] + key.to(tl.int64)[None, :] * mask_key
        score, seen = _visible(score, valid[:, None] & known[None, :], position[:, None],
                               key[None, :], left, right, mask, places, MASK)  # fmt: skip
        score = tl.where(seen, score, float("-inf"))
        raised = tl.maximum(peak, tl.max(score, 1))
        level = tl.where(raised == float("-inf"), 0.0, raised)
        weight = tl.exp2(score - level[:, None])
        kept = tl.exp2(peak - level)
        total = total * kept + tl.sum(weight, 1)
        v_row_of = (k_start + key) * v_row
        v_tile = tl.load(v_base + v_row_of[:, None] + e[None, :],
                         mask=known[:, None] & (e < value_width)[None, :], other=0.0)  # fmt: skip
        sums = dot(weight.to(v.dtype.element_ty), v_tile, sums * kept[:, None])
        peak = raised

    if _any_not_finite(sums):
        level = tl.where(peak == float("-inf"), 0.0, peak)
        wide = q_tile.to(tl.float32)
        sums = tl.zeros([BM, BV], tl.float32)
        for one in range(begin, end):
            k_one = tl.load(k_base + (k_start + one) * k_row + d, mask=d < width, other=0.0)
            v_one = tl.load(v_base + (k_start + one) * v_row + e, mask=e < value_width, other=0.0)
            single = tl.sum(wide * k_one.to(tl.float32)[None, :], 1) * (scale * LOG2E)
            places = mask_places + one * mask_key
            single, sees = _visible(single, valid, position, one, left, right, mask, places, MASK)
            share = tl.exp2(single - level)[:, None] * v_one.to(tl.float32)[None, :]
            sums += tl.where(sees[:, None], share, 0.0)

    if partial is not None:
        index = tl.program_id(1).to(tl.int64) * all_rows + (before + query) * heads + head
        inside = valid[:, None] & (e < value_width)[None, :]
        tl.store(partial + index[:, None] * value_width + e[None, :], sums, mask=inside)
        tl.store(stats + index * 2, peak, mask=valid)
        tl.store(stats + index * 2 + 1, total, mask=valid)
    else:
        level = tl.where(peak == float("-inf"), 0.0, peak)
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        places = batch * out_batch + row * out_row + head * out_head
        inside = valid[:, None] & (e < value_width)[None, :]
        tl.store(out + places[:, None] + e[None, :], result.to(out.dtype.element_ty), mask=inside)
        if lse is not None:
            logarithm = (level + tl.log2(total)) * LN2
            logarithm = tl.where(total == 0.0, float("-inf"), logarithm)
            places = batch * lse_batch + row * lse_row + head * lse_head
            tl.store(lse + places, logarithm, mask=valid)


@triton.jit
def merge(
    partial,  # float32 [splits, queries * H, Dv]
    stats,  # float32 [splits, queries * H, 2]
    out,
    lse,  # or None
    heads,
    q_length,  # of a batch; of all sequences where they are packed
    all_rows,
    value_width,
    splits,
    out_batch,
    out_row,
    out_head,
    lse_batch,
    lse_row,
    lse_head,
    BV: tl.constexpr,
):
    """One query of one head from its splits, in their order."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BV)
    peak = tl.full([1], float("-inf"), tl.float32)
    for split in range(splits):
        index = split * all_rows + row
        peak = tl.maximum(peak, tl.load(stats + index * 2 + tl.arange(0, 1)))
    level = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([BV], tl.float32)
    for split in range(splits):
        index = split * all_rows + row
        own = tl.load(stats + index * 2 + tl.arange(0, 1))
        kept = tl.where(own == float("-inf"), 0.0, tl.exp2(own - level))
        total += kept * tl.load(stats + index * 2 + 1 + tl.arange(0, 1))
        part = tl.load(partial + index * value_width + e, mask=e < value_width, other=0.0)
        # A split in which this query sees nothing holds zeros.
        sums += tl.where(own == float("-inf"), 0.0, kept * part)
    query = row // heads
    head = row - query * heads
    batch = query // q_length
    query = query - batch * q_length
    result = sums / tl.where(total == 0.0, 1.0, total)
    places = batch * out_batch + query * out_row + head * out_head
    tl.store(out + places + e, result.to(out.dtype.element_ty), mask=e < value_width)
    if lse is not None:
        logarithm = tl.where(total == 0.0, float("-inf"), (level + tl.log2(total)) * LN2)
        place = batch * lse_batch + query * lse_row + head * lse_head
        tl.store(lse + place + tl.arange(0, 1), logarithm)


@triton.jit
def grad_dot_out(
    grad,
    out,
    delta,  # float32 [queries * H]
    heads,
    q_length,
    all_rows,
    value_width,
    grad_batch,
    grad_row,
    grad_head,
    out_batch,
    out_row,
    out_head,
    ROWS: tl.constexpr,
    BV: tl.constexpr,
):
    """delta = the scalar product of a row's gradient and its result."""
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, BV)
    valid = index < all_rows
    inside = valid[:, None] & (e < value_width)[None, :]
    query = index // heads
    head = index - query * heads
    batch = query // q_length
    query = query - batch * q_length
    g_places = batch * grad_batch + query * grad_row + head * grad_head
    o_places = batch * out_batch + query * out_row + head * out_head
    g = tl.load(grad + g_places[:, None] + e[None, :], mask=inside, other=0.0).to(tl.float32)
    o = tl.load(out + o_places[:, None] + e[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + index, tl.sum(g * o, 1), mask=valid)


@triton.jit
def backward_keys(
    q,
    k,
    v,
    mask,
    cu_q,
    cu_k,
    lse,
    grad,
    delta,
    dk,  # or None
    dv,  # or None
    heads,
    groups,
    q_length,
    k_length,
    width,
    value_width,
    scale,
    left,
    right,
    bottom_right,
    blocks,  # of keys, for every sequence and group
    q_batch,
    q_row,
    q_head,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    lse_batch,
    lse_row,
    lse_head,
    grad_batch,
    grad_row,
    grad_head,
    dk_batch,
    dk_row,
    dk_head,
    dv_batch,
    dv_row,
    dv_head,
    mask_batch,
    mask_head,
    mask_row,
    mask_key,
    MASK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
):
    """dk and dv of a block of keys, summed over the rows (queries times heads) that see them. The
    scores are the transposed product k q^T, so that no result of a dot is transposed."""
    pair = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    sequence = pair // groups
    group = pair % groups
    q_start, q_count, k_start, k_count, before = _lengths(sequence, cu_q, cu_k, q_length, k_length)
    ratio = heads // groups
    shift = tl.where(bottom_right != 0, k_count - q_count, 0)
    key = block * BN + tl.arange(0, BN)
    known = key < k_count
    begin = tl.maximum(block * BN - shift - right, 0)
    end = tl.minimum(tl.minimum(block * BN + BN, k_count) - shift + left, q_count)
    end = tl.where(block * BN < k_count, end, 0)

    d = tl.arange(0, BD)
    e = tl.arange(0, BV)
    batch = sequence.to(tl.int64)
    k_places = batch * k_batch + (k_start + key) * k_row + group.to(tl.int64) * k_head
    v_places = batch * v_batch + (k_start + key) * v_row + group.to(tl.int64) * v_head
    k_inside = known[:, None] & (d < width)[None, :]
    v_inside = known[:, None] & (e < value_width)[None, :]
    k_tile = tl.load(k + k_places[:, None] + d[None, :], mask=k_inside, other=0.0)
    v_tile = tl.load(v + v_places[:, None] + e[None, :], mask=v_inside, other=0.0)
    k_sums = tl.zeros([BN, BD], tl.float32)
    v_sums = tl.zeros([BN, BV], tl.float32)
    for start in range(begin * ratio, end * ratio, BM):
        r = start + tl.arange(0, BM)
        query = r // ratio
        head = (group * ratio + r % ratio).to(tl.int64)
        valid = query < q_count
        position = query + shift
        row = q_start + query
        q_places = batch * q_batch + row * q_row + head * q_head
        g_places = batch * grad_batch + row * grad_row + head * grad_head
        l_places = batch * lse_batch + row * lse_row + head * lse_head
        q_tile = tl.load(q + q_places[:, None] + d[None, :],
                         mask=valid[:, None] & (d < width)[None, :], other=0.0)  # fmt: skip
        g_tile = tl.load(grad + g_places[:, None] + e[None, :],
                         mask=valid[:, None] & (e < value_width)[None, :], other=0.0)  # fmt: skip
        level = tl.load(lse + l_places, mask=valid, other=0.0) * LOG2E
        product = tl.load(delta + (before + query) * heads + head, mask=valid, other=0.0)
        score = dot(k_tile, tl.trans(q_tile)) * (scale * LOG2E)  # [BN, BM]
        places = batch * mask_batch + head * mask_head + query.to(tl.int64) * mask_row
        places = places[None, :] + key.to(tl.int64)[:, None] * mask_key
        score, seen = _visible(score, known[:, None] & valid[None, :], position[None, :],
                               key[:, None], left, right, mask, places, MASK)  # fmt: skip
        weight = tl.where(seen, tl.exp2(score - level[None, :]), 0.0)
        if dv is not None:
            v_sums = dot(weight.to(grad.dtype.element_ty), g_tile, v_sums)
        if dk is not None:
            slope = dot(v_tile, tl.trans(g_tile)) - product[None, :]
            slope = tl.where(seen, weight * slope, 0.0)
            k_sums = dot(slope.to(q.dtype.element_ty), q_tile, k_sums)

    if _any_not_finite(k_sums) | _any_not_finite(v_sums):
        k_wide = k_tile.to(tl.float32)
        v_wide = v_tile.to(tl.float32)
        k_sums = tl.zeros([BN, BD], tl.float32)
        v_sums = tl.zeros([BN, BV], tl.float32)
        for one in range(begin * ratio, end * ratio):
            place = one // ratio
            which = (group * ratio + one % ratio).to(tl.int64)
            at = place + shift
            line = q_start + place
            q_one = tl.load(q + batch * q_batch + line * q_row + which * q_head + d,
                            mask=d < width, other=0.0).to(tl.float32)  # fmt: skip
            g_one = tl.load(grad + batch * grad_batch + line * grad_row + which * grad_head + e,
                            mask=e < value_width, other=0.0).to(tl.float32)  # fmt: skip
            height = tl.load(lse + batch * lse_batch + line * lse_row + which * lse_head) * LOG2E
            single = tl.sum(k_wide * q_one[None, :], 1) * (scale * LOG2E)
            spots = batch * mask_batch + which * mask_head + place.to(tl.int64) * mask_row
            spots = spots + key.to(tl.int64) * mask_key
            single, sees = _visible(single, known, at, key, left, right, mask, spots, MASK)
            share = tl.where(sees, tl.exp2(single - height), 0.0)
            if dv is not None:
                v_sums += tl.where(sees[:, None], share[:, None] * g_one[None, :], 0.0)
            if dk is not None:
                inner = tl.load(delta + (before + place) * heads + which)
                rise = share * (tl.sum(v_wide * g_one[None, :], 1) - inner)
                k_sums += tl.where(sees[:, None], rise[:, None] * q_one[None, :], 0.0)

    if dk is not None:
        places = batch * dk_batch + (k_start + key) * dk_row + group.to(tl.int64) * dk_head
        result = (k_sums * scale).to(dk.dtype.element_ty)
        tl.store(dk + places[:, None] + d[None, :], result, mask=k_inside)
    if dv is not None:
        places = batch * dv_batch + (k_start + key) * dv_row + group.to(tl.int64) * dv_head
        tl.store(dv + places[:, None] + e[None, :], v_sums.to(dv.dtype.element_ty), mask=v_inside)


@triton.jit
def backward_queries(
    q,
    k,
    v,
    mask,
    cu_q,
    cu_k,
    lse,
    grad,
    delta,
    dq,
    heads,
    groups,
    q_length,
    k_length,
    width,
    value_width,
    scale,
    left,
    right,
    bottom_right,
    blocks,  # of rows, for every sequence and group
    q_batch,
    q_row,
    q_head,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    lse_batch,
    lse_row,
    lse_head,
    grad_batch,
    grad_row,
    grad_head,
    dq_batch,
    dq_row,
    dq_head,
    mask_batch,
    mask_head,
    mask_row,
    mask_key,
    MASK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
    BV: tl.constexpr,
):
    """dq of a block of rows (queries times heads), summed over the keys that they see."""
    pair = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks
    sequence = pair // groups
    group = pair % groups
    q_start, q_count, k_start, k_count, before = _lengths(sequence, cu_q, cu_k, q_length, k_length)
    query, head, valid, shift, first, last = _row_block(
        block, heads // groups, group, q_count, k_count, bottom_right, BM
    )
    position = query + shift
    begin = tl.maximum(first + shift - left, 0) // BN * BN
    end = tl.minimum(last + shift + right + 1, k_count)
    end = tl.where(first < q_count, end, 0)

    d = tl.arange(0, BD)
    e = tl.arange(0, BV)
    batch = sequence.to(tl.int64)
    row = q_start + query
    q_inside = valid[:, None] & (d < width)[None, :]
    q_places = batch * q_batch + row * q_row + head * q_head
    g_places = batch * grad_batch + row * grad_row + head * grad_head
    q_tile = tl.load(q + q_places[:, None] + d[None, :], mask=q_inside, other=0.0)
    g_tile = tl.load(grad + g_places[:, None] + e[None, :],
                     mask=valid[:, None] & (e < value_width)[None, :], other=0.0)  # fmt: skip
    l_places = batch * lse_batch + row * lse_row + head * lse_head
    level = tl.load(lse + l_places, mask=valid, other=0.0) * LOG2E
    product = tl.load(delta + (before + query) * heads + head, mask=valid, other=0.0)
    k_base = k + batch * k_batch + group.to(tl.int64) * k_head
    v_base = v + batch * v_batch + group.to(tl.int64) * v_head
    mask_places = batch * mask_batch + head * mask_head + query.to(tl.int64) * mask_row
    sums = tl.zeros([BM, BD], tl.float32)
    for start in range(begin, end, BN):
        key = start + tl.arange(0, BN)
        known = key < k_count
        k_row_of = (k_start + key) * k_row
        v_row_of = (k_start + key) * v_row
        k_tile = tl.load(k_base + k_row_of[:, None] + d[None, :],
                         mask=known[:, None] & (d < width)[None, :], other=0.0)  # fmt: skip
        v_tile = tl.load(v_base + v_row_of[:, None] + e[None, :],
                         mask=known[:, None] & (e < value_width)[None, :], other=0.0)  # fmt: skip
        score = dot(q_tile, tl.trans(k_tile)) * (scale * LOG2E)
        places = mask_places[:, None] + key.to(tl.int64)[None, :] * mask_key
        score, seen = _visible(score, valid[:, None] & known[None, :], position[:, None],
                               key[None, :], left, right, mask, places, MASK)  # fmt: skip
        weight = tl.where(seen, tl.exp2(score - level[:, None]), 0.0)
        slope = dot(g_tile, tl.trans(v_tile)) - product[:, None]
        slope = tl.where(seen, weight * slope, 0.0)
        sums = dot(slope.to(k.dtype.element_ty), k_tile, sums)

    if _any_not_finite(sums):
        q_wide = q_tile.to(tl.float32)
        g_wide = g_tile.to(tl.float32)
        sums = tl.zeros([BM, BD], tl.float32)
        for one in range(begin, end):
            k_one = tl.load(k_base + (k_start + one) * k_row + d, mask=d < width, other=0.0)
            v_one = tl.load(v_base + (k_start + one) * v_row + e, mask=e < value_width, other=0.0)
            k_one = k_one.to(tl.float32)
            v_one = v_one.to(tl.float32)
            single = tl.sum(q_wide * k_one[None, :], 1) * (scale * LOG2E)
            places = mask_places + one * mask_key
            single, sees = _visible(single, valid, position, one, left, right, mask, places, MASK)
            share = tl.exp2(single - level)
            rise = share * (tl.sum(g_wide * v_one[None, :], 1) - product)
            sums += tl.where(sees[:, None], rise[:, None] * k_one[None, :], 0.0)

    places = batch * dq_batch + row * dq_row + head * dq_head
    result = (sums * scale).to(dq.dtype.element_ty)
    tl.store(dq + places[:, None] + d[None, :], result, mask=q_inside)
