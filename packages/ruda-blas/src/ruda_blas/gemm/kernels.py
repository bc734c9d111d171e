"""Dense products on the device. See README.md for the mathematics.

Half types multiply on tensor cores with float32 sums, float32 in IEEE arithmetic (or in three TF32
products, as a variant). A long sum into a small result is cut into splits, whose float32 sums are
added up in their order by a second kernel.
"""

import triton
import triton.language as tl

from ruda_runtime.kernel.language import dot


@triton.jit
def tile_of(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Tiles in groups of GROUP rows, column by column, so that operands stay in the L2 cache."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    place = tile % in_group
    return first + place % rows, place // rows


@triton.jit
def gemm(
    a,  # [outer, inner, M, K], any strides
    b,  # [outer, inner, K, N], any strides
    bias,  # [N]; any pointer where has_bias is 0
    out,  # [splits, outer, inner, M, N], any strides
    M,
    N,
    K,
    inner,  # batches of the inner dimension
    a_outer,
    a_inner,
    a_m,
    a_k,
    b_outer,
    b_inner,
    b_k,
    b_n,
    out_split,
    out_outer,
    out_inner,
    out_m,
    out_n,
    bias_n,
    alpha,
    beta,  # 0: out is not read
    has_bias,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    program = tl.program_id(0)
    batch = program // (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(program - batch * tiles_m * tiles_n, tiles_m, tiles_n, GROUP)
    outer_index = (batch // inner).to(tl.int64)
    inner_index = (batch % inner).to(tl.int64)
    split = tl.program_id(1)
    steps = tl.cdiv(tl.cdiv(K, BK), tl.num_programs(1))
    m = tile_m * BM + tl.arange(0, BM)
    n = tile_n * BN + tl.arange(0, BN)
    k = split * steps * BK + tl.arange(0, BK)
    a_base = a + outer_index * a_outer + inner_index * a_inner
    b_base = b + outer_index * b_outer + inner_index * b_inner
    a_places = a_base + m.to(tl.int64)[:, None] * a_m + k.to(tl.int64)[None, :] * a_k
    b_places = b_base + k.to(tl.int64)[:, None] * b_k + n.to(tl.int64)[None, :] * b_n
    in_m = (m < M)[:, None]
    in_n = (n < N)[None, :]
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(steps):
        left = K - step * BK
        left_a = tl.load(a_places, mask=in_m & (k[None, :] < left), other=0.0)
        left_b = tl.load(b_places, mask=(k[:, None] < left) & in_n, other=0.0)
        if a.dtype.element_ty != b.dtype.element_ty:
            total = dot(left_a.to(tl.float32), left_b.to(tl.float32), total, PRECISION)
        else:
            total = dot(left_a, left_b, total, PRECISION)
        a_places += BK * a_k
        b_places += BK * b_k
    places = split.to(tl.int64) * out_split + outer_index * out_outer + inner_index * out_inner
    places = places + m.to(tl.int64)[:, None] * out_m + n.to(tl.int64)[None, :] * out_n
    inside = in_m & in_n
    total = total * alpha
    if beta != 0.0:
        total += beta * tl.load(out + places, mask=inside, other=0.0).to(tl.float32)
    if has_bias != 0:
        column = bias + n.to(tl.int64) * bias_n
        total += tl.load(column, mask=n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out + places, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def sum_splits(
    partials,  # float32 [splits, outer, inner, M, N], each split contiguous
    bias,
    out,  # [outer, inner, M, N], any strides
    M,
    N,
    inner,
    splits,
    split_stride,
    out_outer,
    out_inner,
    out_m,
    out_n,
    bias_n,
    alpha,
    beta,
    has_bias,
    BLOCK: tl.constexpr,
):
    """alpha * (the splits' sum in their order) + beta * out + bias, for a part of a row."""
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    batch = row // M
    m = row - batch * M
    inside = n < N
    total = tl.zeros([BLOCK], tl.float32)
    place = partials + row * N + n
    for _ in range(splits):
        total += tl.load(place, mask=inside, other=0.0)
        place += split_stride
    target = out + (batch // inner) * out_outer + (batch % inner) * out_inner + m * out_m
    target = target + n.to(tl.int64) * out_n
    total = total * alpha
    if beta != 0.0:
        total += beta * tl.load(target, mask=inside, other=0.0).to(tl.float32)
    if has_bias != 0:
        column = bias + n.to(tl.int64) * bias_n
        total += tl.load(column, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)
