"""Random numbers on the device. See README.md for the mathematics.

A program draws the four words of each of BLOCK counter blocks and writes the elements that own
them. Where the host multiplies and adds with a rounding after each, a maximum that changes nothing
keeps the compiler from making one instruction, with one rounding, of the two.
"""

import triton
import triton.language as tl


@triton.jit
def words(seed, first, BLOCK: tl.constexpr):
    """Philox4x32-10: four words of the program's counter blocks, the first of all being `first`."""
    block = first + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    low = block.to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    zero = tl.zeros([BLOCK], tl.uint32)
    return tl.philox(seed, low, high, zero, zero)


@triton.jit
def _interleaved(w0, w1, w2, w3):
    """[4 * BLOCK] with the words of a block side by side."""
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def _wide(low, high):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _numbers(seed, first, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Words in the order of the elements: [4 * BLOCK] of 32 bits or [2 * BLOCK] of 64."""
    w0, w1, w2, w3 = words(seed, first, BLOCK)
    if WIDE:
        result = tl.interleave(_wide(w0, w1), _wide(w2, w3))
    else:
        result = _interleaved(w0, w1, w2, w3)
    return result


@triton.jit
def _places(COUNT: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * COUNT + tl.arange(0, COUNT)


@triton.jit
def uniform(
    y,  # [numel]
    numel,
    seed,
    first,
    low,  # rounded to y's dtype, as `high`
    high,  # excluded, though rounding may reach it
    extent,
    BLOCK: tl.constexpr,
):
    element: tl.constexpr = y.dtype.element_ty
    if element == tl.float64:
        bits = _numbers(seed, first, BLOCK, True)
        places = _places(2 * BLOCK)
        unit = (bits >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2^-53
        value = tl.maximum(unit * extent, 0.0) + low
        value = tl.where(value < high, value, low)
    else:
        bits = _numbers(seed, first, BLOCK, False)
        places = _places(4 * BLOCK)
        # As many bits as the significand has.
        if element == tl.float32:
            unit = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08
        elif element == tl.float16:
            unit = (bits >> 21).to(tl.float32) * 0.00048828125
        else:
            unit = (bits >> 24).to(tl.float32) * 0.00390625
        start = low.to(tl.float32)
        drawn = tl.maximum(unit * extent.to(tl.float32), 0.0) + start
        value = drawn.to(element).to(tl.float32)
        value = tl.where(value < high.to(tl.float32), value, start)
    tl.store(y + places, value.to(element), mask=places < numel)


@triton.jit
def _unit_open(seed, first, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Numbers in (0, 1), in the order of the elements: float64 from two words, else float32."""
    bits = _numbers(seed, first, BLOCK, WIDE)
    if WIDE:
        result = ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2^-52
    else:
        result = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23
    return result


@triton.jit
def cauchy(
    y,  # [numel]
    numel,
    seed,
    first,
    median,
    sigma,
    BLOCK: tl.constexpr,
):
    element: tl.constexpr = y.dtype.element_ty
    if element == tl.float64:
        places = _places(2 * BLOCK)
        angle = (_unit_open(seed, first, BLOCK, True) - 0.5) * 3.141592653589793
        value = median + sigma * (tl.sin(angle) / tl.cos(angle))
    else:
        places = _places(4 * BLOCK)
        angle = (_unit_open(seed, first, BLOCK, False) - 0.5) * 3.141592653589793
        tangent = tl.sin(angle) / tl.cos(angle)
        value = median.to(tl.float32) + sigma.to(tl.float32) * tangent
    tl.store(y + places, value.to(element), mask=places < numel)


@triton.jit
def exponential(
    y,  # [numel]
    numel,
    seed,
    first,
    scale,  # -1 / lambda
    least,  # 0 is outside of the distribution
    BLOCK: tl.constexpr,
):
    element: tl.constexpr = y.dtype.element_ty
    if element == tl.float64:
        places = _places(2 * BLOCK)
        unit = _unit_open(seed, first, BLOCK, True)
        value = tl.maximum(tl.log(unit) * scale, least)
    else:
        places = _places(4 * BLOCK)
        unit = _unit_open(seed, first, BLOCK, False)
        value = tl.maximum(tl.log(unit) * scale.to(tl.float32), least.to(tl.float32))
    tl.store(y + places, value.to(element), mask=places < numel)


@triton.jit
def _pair(low, high, mean, std):
    """Two normal numbers from two words (Box and Muller)."""
    uniform_ = (low.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2^-32
    turn = (high >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    radius = tl.sqrt_rn(-2.0 * tl.log(uniform_))
    angle = 6.283185307179586 * turn
    least = -16.0 * std  # the radius is below 7
    one = tl.maximum(radius * tl.cos(angle) * std, least) + mean
    two = tl.maximum(radius * tl.sin(angle) * std, least) + mean
    return one, two


@triton.jit
def normal(
    y,  # [numel]
    numel,
    seed,
    first,
    mean,
    std,
    BLOCK: tl.constexpr,
):
    element: tl.constexpr = y.dtype.element_ty
    w0, w1, w2, w3 = words(seed, first, BLOCK)
    if element == tl.float64:
        places = _places(2 * BLOCK)
        unit = ((_wide(w0, w1) >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
        angle = (_wide(w2, w3) >> 11).to(tl.float64) * 1.1102230246251565e-16 * 6.283185307179586
        radius = tl.sqrt(-2.0 * tl.log(unit))
        least = -16.0 * std
        one = tl.maximum(radius * tl.cos(angle) * std, least) + mean
        two = tl.maximum(radius * tl.sin(angle) * std, least) + mean
        value = tl.interleave(one, two)
    else:
        places = _places(4 * BLOCK)
        middle, spread = mean.to(tl.float32), std.to(tl.float32)
        n0, n1 = _pair(w0, w1, middle, spread)
        n2, n3 = _pair(w2, w3, middle, spread)
        value = _interleaved(n0, n1, n2, n3)
    tl.store(y + places, value.to(element), mask=places < numel)


@triton.jit
def integers(
    y,  # [numel]
    numel,
    seed,
    first,
    extent,  # as unsigned; 0: all 64 bits
    base,
    BLOCK: tl.constexpr,
):
    """base + (one of 0..extent-1), by the high part of a product."""
    bits = _numbers(seed, first, BLOCK, True)
    places = _places(2 * BLOCK)
    # A block: the interpreter knows no conditions that are scalars.
    unsigned = bits * 0 + extent.to(tl.uint64)
    below = tl.where(unsigned == 0, bits, tl.umulhi(bits, unsigned))
    value = (below + base.to(tl.uint64)).to(tl.int64)
    tl.store(y + places, value.to(y.dtype.element_ty), mask=places < numel)


@triton.jit
def bernoulli(
    y,  # [numel]
    numel,
    seed,
    first,
    threshold,  # p * 2^32
    BLOCK: tl.constexpr,
):
    bits = _numbers(seed, first, BLOCK, False)
    places = _places(4 * BLOCK)
    one = bits.to(tl.int64) < threshold
    tl.store(y + places, tl.where(one, 1.0, 0.0).to(y.dtype.element_ty), mask=places < numel)


@triton.jit
def bernoulli_each(
    y,  # [numel]
    p,  # [numel]
    wrong,  # [1]: 1 where a probability is not in 0..1, else untouched
    numel,
    seed,
    first,
    BLOCK: tl.constexpr,
):
    bits = _numbers(seed, first, BLOCK, False)
    places = _places(4 * BLOCK)
    inside = places < numel
    chance = tl.load(p + places, mask=inside, other=0.0).to(tl.float64)
    refused = tl.where((chance >= 0.0) & (chance <= 1.0), 0, 1)
    tl.store(wrong, 1, mask=tl.max(refused, 0) > 0)
    one = bits.to(tl.float64) * 2.3283064365386963e-10 < chance
    tl.store(y + places, tl.where(one, 1.0, 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit
def dropout(
    x,  # [numel]
    y,  # [numel]
    mask,  # [numel]
    numel,
    seed,
    first,
    threshold,  # (1 - p) * 2^32
    scale,
    BLOCK: tl.constexpr,
):
    element: tl.constexpr = y.dtype.element_ty
    bits = _numbers(seed, first, BLOCK, False)
    places = _places(4 * BLOCK)
    inside = places < numel
    kept = bits.to(tl.int64) < threshold
    if element == tl.float64:
        value = tl.load(x + places, mask=inside, other=0.0) * tl.where(kept, scale, 0.0)
    else:
        given = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        value = given * tl.where(kept, scale.to(tl.float32), 0.0)
    tl.store(y + places, value.to(element), mask=inside)
    tl.store(mask + places, kept.to(tl.uint8), mask=inside)
