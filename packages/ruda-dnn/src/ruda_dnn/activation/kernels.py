"""SiLU times a second operand on the device. See README.md for the mathematics."""

import triton
import triton.language as tl


@triton.jit
def silu_mul_forward(gate, up, out, count, BLOCK: tl.constexpr):
    """out = round(silu(gate)) * up over flat memory."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    g = tl.load(gate + places, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + places, mask=inside, other=0.0).to(tl.float32)
    silu = (g * (1.0 / (1.0 + tl.exp(-g)))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + places, (silu * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul_backward(
    gate,
    up,
    grad,
    dgate,  # or None
    dup,  # or None
    count,
    BLOCK: tl.constexpr,
):
    """dup = grad * round(silu(gate)), dgate = grad * up * s * (1 + gate * (1 - s))."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    g = tl.load(gate + places, mask=inside, other=0.0).to(tl.float32)
    upper = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
    s = 1.0 / (1.0 + tl.exp(-g))
    if dgate is not None:
        u = tl.load(up + places, mask=inside, other=0.0).to(tl.float32)
        slope = s * (1.0 + g * (1.0 - s))
        tl.store(dgate + places, (upper * u * slope).to(dgate.dtype.element_ty), mask=inside)
    if dup is not None:
        silu = (g * s).to(dup.dtype.element_ty).to(tl.float32)
        tl.store(dup + places, (upper * silu).to(dup.dtype.element_ty), mask=inside)
