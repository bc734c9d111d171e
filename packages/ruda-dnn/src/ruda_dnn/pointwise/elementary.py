"""Functions of one or two floating values that Triton does not have, from those that it has.

Blocks are float32 or float64 and results have the same type.
"""

import triton
import triton.language as tl


@triton.jit
def divide(a, b):
    """The quotient rounded to nearest, where `/` may be two units off in float32."""
    if a.dtype.is_fp32():
        result = tl.div_rn(a, b)
    else:
        result = a / b
    return result


@triton.jit
def square_root(x):
    if x.dtype.is_fp32():
        result = tl.sqrt_rn(x)
    else:
        result = tl.sqrt(x)
    return result


@triton.jit
def is_negative(x):
    """Whether the sign's bit is set, in zeros and NaN too."""
    if x.dtype.is_fp32():
        result = x.to(tl.int32, bitcast=True) < 0
    else:
        result = x.to(tl.int64, bitcast=True) < 0
    return result


@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def round_half_even(x):
    below = tl.floor(x)
    part = x - below
    odd = below - 2 * tl.floor(below * 0.5)
    half = tl.where(part < 0.5, below, below + odd)
    nearest = tl.where(part > 0.5, below + 1, half)
    # From 2^52 on every value is whole, and infinities and NaN have no part; 0 keeps its sign.
    nearest = tl.where(nearest == 0, x * 0, nearest)
    return tl.where(tl.abs(x) < 4503599627370496.0, nearest, x)


@triton.jit
def expm1(x):
    """Kahan's: (u - 1) / log(u) hardly changes with u near e^x, so that u may be rounded."""
    u = tl.exp(x)
    result = (u - 1) * divide(x, tl.log(u))
    result = tl.where(u - 1 == -1, -1.0, result)
    result = tl.where(u == 1, x, result)
    return tl.where(u == float("inf"), u, result)


@triton.jit
def log1p(x):
    """Kahan's: log(u) / (u - 1) hardly changes with u near 1 + x, so that u may be rounded."""
    u = 1 + x
    result = tl.log(u) * divide(x, u - 1)
    result = tl.where(u == 1, x, result)
    return tl.where(u == float("inf"), u, result)


@triton.jit
def log10(x):
    wide = tl.log(x.to(tl.float64)) * 0.43429448190325182765
    return wide.to(x.dtype)


@triton.jit
def reciprocal(x):
    return divide(tl.where(x == x, 1.0, x), x)


@triton.jit
def sigmoid(x):
    return reciprocal(1 + tl.exp(-x))


@triton.jit
def tanh(x):
    size = tl.abs(x)
    grown = expm1(2 * tl.where(size > 20, 20.0, size))
    result = divide(grown, grown + 2)
    return tl.where(x < 0, -result, tl.where(x == 0, x, result))


@triton.jit
def sinh(x):
    grown = expm1(tl.abs(x))
    result = tl.where(grown < float("inf"), 0.5 * (grown + divide(grown, grown + 1)), grown)
    return tl.where(x < 0, -result, tl.where(x == 0, x, result))


@triton.jit
def power(a, b):
    """a^b in float64; a negative base has powers with whole exponents only."""
    base, exponent = a.to(tl.float64), b.to(tl.float64)
    size = tl.abs(base)
    result = tl.exp2(exponent * tl.log2(size))
    whole = tl.floor(exponent) == exponent
    odd = whole & (exponent - 2 * tl.floor(exponent * 0.5) == 1)
    result = tl.where(is_negative(base) & odd, -result, result)
    infinite = tl.abs(exponent) == float("inf")
    result = tl.where((base < 0) & ~whole & (size < float("inf")), float("nan"), result)
    result = tl.where((size == 1) & infinite, 1.0, result)
    result = tl.where((base == 1) | (exponent == 0), 1.0, result)
    return result.to(a.dtype)


@triton.jit
def remainder_of_division(a, b):
    """C's fmod, in float64: its sign is that of a."""
    x, y = a.to(tl.float64), tl.abs(b.to(tl.float64))
    size = tl.abs(x)
    rest = size
    # A quotient of 2^52 and more is rounded: what it leaves is exact, and is divided again.
    far = (y > 0) & (size < float("inf")) & (size >= y * 4503599627370496.0)
    while tl.max(far.to(tl.int32)) > 0:
        # Where the quotient is no number, by a multiple of y: 2^1000 times as large.
        by = tl.where(tl.abs(rest) / y < float("inf"), y, y * 1.0715086071862673e301)
        rest = tl.where(far, tl.fma(-tl.floor(rest / by), by, rest), rest)
        far = far & (tl.abs(rest) >= y * 4503599627370496.0)
    result = tl.fma(-tl.floor(rest / y), y, rest)
    # The rounded quotient may be one too large or, below it, too small.
    result = tl.where(result < 0, result + y, result)
    result = tl.where(result >= y, result - y, result)
    result = tl.where((y == float("inf")) & (size < float("inf")), size, result)
    return tl.where(x < 0, -result, result)


@triton.jit
def modulo(a, b):
    """Python's %: its sign is that of b."""
    rest = remainder_of_division(a, b)
    wide = b.to(tl.float64)
    return tl.where((rest != 0) & ((rest < 0) != (wide < 0)), rest + wide, rest).to(a.dtype)


@triton.jit
def floor_divide(a, b):
    """The floor of the exact quotient, not of the rounded one."""
    x, y = a.to(tl.float64), b.to(tl.float64)
    rest = remainder_of_division(a, b)
    quotient = (x - rest) / y
    quotient = tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    below = tl.floor(quotient)
    below = tl.where(quotient - below > 0.5, below + 1, below)
    result = tl.where(quotient == 0, x / y * 0, below)
    return tl.where(y == 0, x / y, result).to(a.dtype)


@triton.jit
def integer_floor_divide(a, b):
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def integer_modulo(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def integer_power(a, b):
    """Squares and products that wrap; a negative exponent leaves 1, -1 or 0."""
    result = a * 0 + 1
    base, left = a, tl.where(b < 0, 0, b)
    while tl.max(left) > 0:
        result = tl.where(left & 1 != 0, result * base, result)
        base = base * base
        left = left >> 1
    sign = tl.where(b & 1 != 0, -1, 1)
    small = tl.where(a == 1, 1, tl.where(a == -1, sign, 0))
    return tl.where(b < 0, small, result)
