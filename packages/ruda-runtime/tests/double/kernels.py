"""Small Triton kernels, interpreted by the double's server."""

import triton
import triton.language as tl


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offsets, (values * factor).to(out.dtype.element_ty), mask=mask)


@triton.jit
def row_sum(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + offsets, mask=offsets < columns, other=0.0)
    tl.store(out + row, tl.sum(values.to(tl.float32), axis=0))


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask, other=0)
    tl.atomic_add(counts + values, 1, mask=mask)


@triton.jit
def product(a, b, c, K, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        left = tl.load(a + i[:, None] * K + k + i[None, :])
        right = tl.load(b + (k + i)[:, None] * BLOCK + i[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + i[:, None] * BLOCK + i[None, :], total)


@triton.jit
def far_read(x, out, offset):
    """One element at an offset, which is 64-bit where its argument is."""
    tl.store(out, tl.load(x + offset))


@triton.jit
def last_writer(out, n):
    """Wrong on purpose: every program writes the same place."""
    tl.store(out, tl.program_id(0))


@triton.jit
def running_sum(x, out):
    """Wrong on purpose: a program reads what the one before it writes."""
    i = tl.program_id(0)
    before = tl.load(out + i - 1, mask=i > 0, other=0.0)
    tl.store(out + i, before + tl.load(x + i))


@triton.jit
def raw_bfloat16(x, out):
    tl.store(out, tl.load(x) + tl.load(x + 1))


@triton.jit
def failing(x):
    tl.static_assert(False, "this kernel always fails")


@triton.jit
def masked_without_other(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n))
