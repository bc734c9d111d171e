"""Rotary position embedding on the device. See README.md for the mathematics."""

import triton
import triton.language as tl


@triton.jit
def rotary(
    x,  # [B, T, H, D], features adjacent
    cos,  # [B or 1, T, R]
    sin,  # [B or 1, T, R]
    y,  # [B, T, H, D], contiguous
    batch_stride,  # of x
    token_stride,
    head_stride,
    table_stride,  # of a batch of the tables; 0 where all share one
    length,
    heads,
    features,
    half,  # R / 2
    TRANSPOSED: tl.constexpr,  # the backward map
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """One token, HEADS of its heads, HALF pairs at a time."""
    token = tl.program_id(0).to(tl.int64)
    batch = token // length
    place = token - batch * length
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    valid = head < heads
    table = batch * table_stride + place * (2 * half)
    x_rows = x + batch * batch_stride + place * token_stride + head.to(tl.int64) * head_stride
    y_rows = y + (token * heads + head) * features
    for start in range(0, half, HALF):
        pair = start + tl.arange(0, HALF)
        known = pair < half
        c = tl.load(cos + table + pair, mask=known, other=0.0).to(tl.float32)[None, :]
        d = tl.load(cos + table + half + pair, mask=known, other=0.0).to(tl.float32)[None, :]
        s = tl.load(sin + table + pair, mask=known, other=0.0).to(tl.float32)[None, :]
        t = tl.load(sin + table + half + pair, mask=known, other=0.0).to(tl.float32)[None, :]
        inside = valid[:, None] & known[None, :]
        near = x_rows[:, None] + pair[None, :]
        a = tl.load(near, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(near + half, mask=inside, other=0.0).to(tl.float32)
        if TRANSPOSED:
            first = a * c + b * t
            second = b * d - a * s
        else:
            first = a * c - b * s
            second = b * d + a * t
        target = y_rows[:, None] + pair[None, :]
        tl.store(target, first.to(y.dtype.element_ty), mask=inside)
        tl.store(target + half, second.to(y.dtype.element_ty), mask=inside)
    for start in range(2 * half, features, HALF):
        feature = start + tl.arange(0, HALF)
        inside = valid[:, None] & (feature < features)[None, :]
        rest = tl.load(x_rows[:, None] + feature[None, :], mask=inside, other=0.0)
        tl.store(y_rows[:, None] + feature[None, :], rest, mask=inside)
