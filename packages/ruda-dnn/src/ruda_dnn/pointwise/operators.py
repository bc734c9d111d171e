"""What every operator computes, by its name and number of operands.

Operands are blocks of one type: float32, float64 or int64 (booleans: 0 and 1).
A condition as result is stored as 0 or 1. The names are those of launch.py.
"""

import triton
import triton.language as tl

from ruda_dnn.pointwise.elementary import (
    divide,
    expm1,
    floor_divide,
    integer_floor_divide,
    integer_modulo,
    integer_power,
    is_negative,
    log1p,
    log10,
    modulo,
    power,
    reciprocal,
    remainder_of_division,
    round_half_even,
    sigmoid,
    sinh,
    square_root,
    tanh,
    trunc,
)

ROOT_HALF = tl.constexpr(0.70710678118654752440)
ROOT_2_OVER_PI = tl.constexpr(0.79788456080286535588)
ONE_OVER_ROOT_2_PI = tl.constexpr(0.39894228040143267794)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def zero_to_six(x):
    return tl.where(x < 0, 0, tl.where(x > 6, 6, x))


@triton.jit
def unary(OP: tl.constexpr, x):
    result = x
    if OP == "neg":
        result = -x
    if OP == "abs":
        result = tl.abs(x)
    if OP == "sign":
        result = (x > 0).to(tl.int64) - (x < 0).to(tl.int64)
    if OP == "exp":
        result = tl.exp(x)
    if OP == "exp2":
        result = tl.exp2(x)
    if OP == "expm1":
        result = expm1(x)
    if OP == "log":
        result = tl.log(x)
    if OP == "log2":
        result = tl.log2(x)
    if OP == "log10":
        result = log10(x)
    if OP == "log1p":
        result = log1p(x)
    if OP == "sqrt":
        result = square_root(x)
    if OP == "rsqrt":
        result = reciprocal(square_root(x))
    if OP == "reciprocal":
        result = reciprocal(x)
    if OP == "sin":
        result = tl.sin(x)
    if OP == "cos":
        result = tl.cos(x)
    if OP == "tan":
        result = divide(tl.sin(x), tl.cos(x))
    if OP == "tanh":
        result = tanh(x)
    if OP == "sigmoid":
        result = sigmoid(x)
    if OP == "erf":
        result = tl.erf(x)
    if OP == "ceil":
        result = tl.ceil(x)
    if OP == "floor":
        result = tl.floor(x)
    if OP == "round":
        result = round_half_even(x)
    if OP == "trunc":
        result = trunc(x)
    if OP == "bitwise_not":
        result = ~x
    if OP == "logical_not":
        result = x == 0
    if OP == "isnan":
        result = x != x
    if OP == "isinf":
        result = tl.abs(x) == float("inf")
    if OP == "isfinite":
        result = tl.abs(x) < float("inf")
    if OP == "relu":
        result = tl.where(x < 0, 0, x)
    if OP == "silu":
        result = divide(x, 1 + tl.exp(-x))
    if OP == "mish":
        result = x * tanh(log1p(tl.exp(x)))
    if OP == "gelu":
        result = 0.5 * x * (1 + tl.erf(x * ROOT_HALF))
    if OP == "gelu_tanh":
        result = 0.5 * x * (1 + tanh((x + x * x * x * CUBIC) * ROOT_2_OVER_PI))
    if OP == "log_sigmoid":
        result = tl.where(x < 0, x, 0.0) - log1p(tl.exp(-tl.abs(x)))
    if OP == "frac":
        result = x - trunc(x)
    if OP == "isposinf":
        result = x == float("inf")
    if OP == "isneginf":
        result = x == -float("inf")
    if OP == "sinh":
        result = sinh(x)
    if OP == "cosh":
        result = 0.5 * tl.exp(x) + 0.5 * tl.exp(-x)
    if OP == "hardsigmoid":
        result = zero_to_six(x + 3) / 6
    if OP == "hardswish":
        result = x * zero_to_six(x + 3) / 6
    if OP == "square":
        result = x * x
    if OP == "cube":
        result = x * x * x
    if OP == "inverse_square":
        result = reciprocal(x * x)
    return result


@triton.jit
def gelu_slope(x):
    density = tl.exp(-0.5 * x * x) * ONE_OVER_ROOT_2_PI
    return 0.5 * (1 + tl.erf(x * ROOT_HALF)) + x * density


@triton.jit
def gelu_tanh_slope(x):
    bend = tanh((x + x * x * x * CUBIC) * ROOT_2_OVER_PI)
    inner = (1 + x * x * CUBIC * 3) * ROOT_2_OVER_PI
    return 0.5 * (1 + bend) + 0.5 * x * (1 - bend * bend) * inner


@triton.jit
def mish_slope(x):
    bend = tanh(log1p(tl.exp(x)))
    return bend + x * sigmoid(x) * (1 - bend * bend)


@triton.jit
def maximum(a, b):
    """NaN where either is."""
    return tl.where(a != a, a, tl.where((b != b) | (b > a), b, a))


@triton.jit
def minimum(a, b):
    """NaN where either is."""
    return tl.where(a != a, a, tl.where((b != b) | (b < a), b, a))


@triton.jit
def at_least(x, bound: tl.constexpr):
    return tl.where(x < bound, bound, x)


@triton.jit
def signed(sign, value):
    return tl.where(sign < 0, -value, value)


@triton.jit
def quotient(OP: tl.constexpr, a, b):
    result = a
    if a.dtype.is_floating():
        if OP == "div":
            result = divide(a, b)
        if OP == "div_floor":
            result = floor_divide(a, b)
        if OP == "remainder":
            result = modulo(a, b)
        if OP == "fmod":
            result = remainder_of_division(a, b).to(a.dtype)
        if OP == "pow":
            result = power(a, b)
    else:
        if OP == "div_trunc":
            result = a // b
        if OP == "div_floor":
            result = integer_floor_divide(a, b)
        if OP == "remainder":
            result = integer_modulo(a, b)
        if OP == "fmod":
            result = a % b
        if OP == "pow":
            result = integer_power(a, b)
    return result


@triton.jit
def binary(OP: tl.constexpr, a, b):
    result = quotient(OP, a, b)
    if OP == "add":
        result = a + b
    if OP == "sub":
        result = a - b
    if OP == "mul":
        result = a * b
    if OP == "maximum":
        result = maximum(a, b)
    if OP == "minimum":
        result = minimum(a, b)
    if OP == "fmax":
        result = tl.where((a != a) | (b > a), b, a)
    if OP == "fmin":
        result = tl.where((a != a) | (b < a), b, a)
    if OP == "eq":
        result = a == b
    if OP == "ne":
        result = a != b
    if OP == "lt":
        result = a < b
    if OP == "le":
        result = a <= b
    if OP == "gt":
        result = a > b
    if OP == "ge":
        result = a >= b
    if OP == "logical_and":
        result = (a != 0) & (b != 0)
    if OP == "logical_or":
        result = (a != 0) | (b != 0)
    if OP == "logical_xor":
        result = (a != 0) != (b != 0)
    if OP == "bitwise_and":
        result = a & b
    if OP == "bitwise_or":
        result = a | b
    if OP == "bitwise_xor":
        result = a ^ b
    if OP == "left_shift":
        result = tl.where((b >= 0) & (b < 64), a << (b & 63), 0)
    if OP == "right_shift":
        result = a >> tl.where((b >= 0) & (b < 64), b, 63)
    if OP == "leaky_relu":
        result = tl.where(a > 0, a, a * b)
    if OP == "glu":
        result = a * sigmoid(b)
    if OP == "round_to":  # whole multiples of 1 / b
        result = divide(round_half_even(a * b), b)
    if OP == "round_from":  # whole multiples of b
        result = round_half_even(divide(a, b)) * b
    if OP == "logit":  # x, and how near to 0 and 1 it may be, where that is not negative
        inside = minimum(maximum(a, b), 1 - b)
        chance = tl.where(b < 0, a, inside)
        result = tl.log(divide(chance, 1 - chance))
    if OP == "copysign":
        result = tl.where(is_negative(b), -tl.abs(a), tl.abs(a))
    if OP == "xlogy":
        result = tl.where((a == 0) & (b == b), 0, a * tl.log(b))
    if OP == "logaddexp":
        larger = maximum(a, b)
        result = larger + log1p(tl.exp(-tl.abs(a - b)))
        result = tl.where((a == b) & (tl.abs(a) == float("inf")), a, result)
    if OP == "hardshrink":
        result = tl.where(tl.abs(a) <= b, 0, a)
    if OP == "softshrink":
        result = tl.where(a > b, a - b, tl.where(a < -b, a + b, tl.where(a == a, 0, a)))
    if OP == "cross_entropy":  # a probability and its target
        result = (b - 1) * at_least(log1p(-a), -100) - b * at_least(tl.log(a), -100)
    if OP == "mse":
        result = (a - b) * (a - b)
    if OP == "hardsigmoid_backward":
        result = tl.where((b > -3) & (b < 3), a / 6, 0)
    if OP == "hardswish_backward":
        result = tl.where(b <= -3, 0, tl.where(b < 3, a * (b / 3 + 0.5), a))
    if OP == "slope_backward":  # of leaky_relu by its slope: grad, x
        result = tl.where(b > 0, 0, a * b)
    if OP == "silu_backward":
        gate = sigmoid(b)
        result = a * gate * (1 + b * (1 - gate))
    if OP == "mish_backward":
        result = a * mish_slope(b)
    if OP == "gelu_backward":
        result = a * gelu_slope(b)
    if OP == "gelu_tanh_backward":
        result = a * gelu_tanh_slope(b)
    if OP == "sigmoid_backward":
        result = a * (1 - b) * b
    if OP == "log_sigmoid_backward":
        result = a * sigmoid(-b)
    if OP == "tanh_backward":
        result = a * (1 - b * b)
    return result


@triton.jit
def more_operands(OP: tl.constexpr, a, b, c, d, e):
    result = a
    if OP == "add_scaled":
        result = a + b * c
    if OP == "where":
        result = tl.where(a != 0, b, c)
    if OP == "where_not":
        result = tl.where(a != 0, c, b)
    if OP == "clamp":
        result = minimum(maximum(a, b), c)
    if OP == "lerp":
        result = tl.where(tl.abs(c) < 0.5, a + c * (b - a), b - (b - a) * (1 - c))
    if OP == "addcmul":
        result = a + d * b * c
    if OP == "addcdiv":
        result = a + divide(d * b, c)
    if OP == "threshold":  # x, other, bound, value
        result = tl.where(a <= c, d, b)
    if OP == "softplus":  # x, beta, bound
        result = tl.where(a * b > c, a, divide(log1p(tl.exp(a * b)), b))
    if OP == "softplus_backward":  # grad, x, beta, bound
        result = tl.where(b * c > d, a, a * sigmoid(b * c))
    if OP == "elu":  # x, alpha, scale, scale of x
        result = tl.where(a < 0, expm1(a * d) * (b * c), a * c)
    if OP == "elu_backward":  # grad, x, alpha, scale, scale of x
        result = tl.where(b <= 0, a * (e * c * d) * tl.exp(b * e), a * d)
    if OP == "elu_backward_of_result":
        result = tl.where(b <= 0, a * e * (b + c * d), a * d)
    if OP == "leaky_relu_backward":  # x, grad, slope
        result = tl.where(a > 0, b, b * c)
    if OP == "hardtanh_backward":  # grad, x, smallest, largest
        result = tl.where((b <= c) | (b >= d), 0, a)
    if OP == "nan_to_num":  # x, and what NaN, infinity and -infinity become
        result = tl.where(a != a, b, a)
        result = tl.where(a == float("inf"), c, result)
        result = tl.where(a == -float("inf"), d, result)
    if OP == "glu_backward":  # the gate, the first half, grad
        result = (1 - a) * a * b * c
    if OP == "shrink_backward":  # grad, x, bound
        result = tl.where(tl.abs(b) <= c, 0, a)
    if OP == "logit_backward":  # grad, x, how near to 0 and 1
        outside = tl.where(c < 0, float("nan"), tl.zeros_like(a))
        low, high = maximum(c, tl.zeros_like(c)), minimum(1 - c, tl.zeros_like(c) + 1)
        result = tl.where((b < low) | (b > high), outside, divide(a, b * (1 - b)))
    if OP == "smooth_l1":  # x, target, width of the bend
        distance = tl.abs(a - b)
        bent = divide(0.5 * distance * distance, c)
        result = tl.where(distance < c, bent, distance - 0.5 * c)
    if OP == "smooth_l1_backward":  # x, target, grad, factor, width of the bend
        result = tl.where(tl.abs(a - b) < e, d * divide((a - b) * c, e), d * signed(a - b, c))
    if OP == "huber":
        distance = tl.abs(a - b)
        result = tl.where(distance <= c, 0.5 * distance * distance, c * (distance - 0.5 * c))
    if OP == "huber_backward":
        result = tl.where(tl.abs(a - b) < e, d * (a - b) * c, d * e * signed(a - b, c))
    if OP == "cross_entropy_backward":  # grad, a probability, its target
        spread = at_least((1 - b) * b, 1e-12)
        result = divide(a * (b - c), spread)
    if OP == "mse_backward":  # x, target, grad, factor
        result = d * (a - b) * c
    return result
