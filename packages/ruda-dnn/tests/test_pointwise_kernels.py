"""The pointwise kernels, interpreted, against NumPy in float64 and in integers; and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ruda_dnn.pointwise import launch
from ruda_runtime import conformance
from ruda_runtime.conformance import numpy_dtype, rounded
from ruda_runtime.launch import View, contiguous_view

from .kernels_support import DTYPES, check, compile_for, compile_tests, interpreter_fixture

interpreter = interpreter_fixture()
BUNDLE = launch.bundle()
test_compiles, _ = compile_tests(BUNDLE[::7])
_, test_compiles_everywhere = compile_tests(BUNDLE)

FLOATS = [*DTYPES, "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.logaddexp(0.0, x)


def logit(x: Any) -> Any:
    return np.log(x / (1 - x))


def tanh_gelu_bend(x: Any) -> Any:
    return np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


UNARY: dict[str, Callable[[Any], Any]] = {
    "copy": lambda x: x, "neg": np.negative, "abs": np.abs, "sign": lambda x: np.sign(x) + 0.0,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "sigmoid": sigmoid, "erf": erf, "ceil": np.ceil, "floor": np.floor, "round": np.round,
    "trunc": np.trunc, "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + tanh_gelu_bend(x)),
    "square": np.square, "cube": lambda x: x * x * x, "inverse_square": lambda x: 1 / (x * x),
    "frac": lambda x: x - np.trunc(x), "log_sigmoid": lambda x: -softplus(-x),
    "sinh": np.sinh, "cosh": np.cosh, "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}  # fmt: skip
INFINITE_IS_DIFFERENT = {"sign", "mish", "silu", "gelu", "gelu_tanh", "frac", "hardswish"}
"""Not asked about infinities or NaN, where the formula of the reference is not the definition."""


def slope(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """grad times the derivative, by a central difference of the exact function."""

    def backward(grad: Any, x: Any) -> Any:
        step = 1e-5
        return grad * (function(x + step) - function(x - step)) / (2 * step)

    return backward


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "div_trunc": lambda a, b: np.trunc(a / b), "div_floor": np.floor_divide,
    "remainder": np.remainder, "fmod": np.fmod, "pow": np.power, "maximum": np.maximum,
    "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin, "mse": lambda a, b: (a - b) ** 2,
    "leaky_relu": lambda a, b: np.where(a > 0, a, a * b),
    "silu_backward": slope(UNARY["silu"]), "mish_backward": slope(UNARY["mish"]),
    "gelu_backward": slope(UNARY["gelu"]), "gelu_tanh_backward": slope(UNARY["gelu_tanh"]),
    "log_sigmoid_backward": slope(UNARY["log_sigmoid"]),
    "glu": lambda a, b: a * sigmoid(b), "logaddexp": np.logaddexp,
    "logit": lambda a, b: logit(np.where(b < 0, a, np.minimum(np.maximum(a, b), 1 - b))),
    "copysign": np.copysign,
    "round_to": lambda a, b: np.round(a * b) / b, "round_from": lambda a, b: np.round(a / b) * b,
    "xlogy": lambda a, b: np.where((a == 0) & ~np.isnan(b), 0, a * np.log(b)),
    "hardshrink": lambda a, b: np.where(np.abs(a) <= b, 0, a),
    "softshrink": lambda a, b: np.where(
        a > b, a - b, np.where(a < -b, a + b, np.where(np.isnan(a), a, 0))
    ),
    "hardsigmoid_backward": lambda a, b: np.where(np.abs(b) < 3, a / 6, 0),
    "hardswish_backward": lambda a, b: a * np.where(b <= -3, 0, np.where(b < 3, b / 3 + 0.5, 1)),
    "slope_backward": lambda a, b: np.where(b > 0, 0, a * b),
    "sigmoid_backward": lambda a, b: a * b * (1 - b), "tanh_backward": lambda a, b: a * (1 - b * b),
}  # fmt: skip
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}  # fmt: skip
MORE: dict[str, Callable[..., Any]] = {
    "add_scaled": lambda a, b, c: a + b * c, "where": lambda a, b, c: np.where(a != 0, b, c),
    "where_not": lambda a, b, c: np.where(a != 0, c, b),
    "clamp": lambda a, b, c: np.minimum(np.maximum(a, b), c),
    "lerp": lambda a, b, c: a + c * (b - a), "addcmul": lambda a, b, c, d: a + d * b * c,
    "addcdiv": lambda a, b, c, d: a + d * b / c,
    "threshold": lambda a, b, c, d: np.where(a <= c, d, b),
    "softplus": lambda a, b, c: np.where(a * b > c, a, np.log1p(np.exp(a * b)) / b),
    "softplus_backward": lambda a, b, c, d: np.where(b * c > d, a, a * sigmoid(b * c)),
    "elu": lambda a, b, c, d: np.where(a < 0, np.expm1(a * d) * b * c, a * c),
    "elu_backward": lambda a, b, c, d, e: np.where(b <= 0, a * c * d * e * np.exp(b * e), a * d),
    "elu_backward_of_result": lambda a, b, c, d, e: np.where(b <= 0, a * e * (b + c * d), a * d),
    "leaky_relu_backward": lambda a, b, c: np.where(a > 0, b, b * c),
    "hardtanh_backward": lambda a, b, c, d: np.where((b <= c) | (b >= d), 0 * a, a),
    "mse_backward": lambda a, b, c, d: d * (a - b) * c,
    "glu_backward": lambda a, b, c: (1 - a) * a * b * c,
    "logit_backward": lambda a, b, c: np.where((b < c) | (b > 1 - c), 0, a / (b * (1 - b))),
    "shrink_backward": lambda a, b, c: np.where(np.abs(b) <= c, 0, a),
    "smooth_l1": lambda a, b, c: np.where(
        np.abs(a - b) < c, 0.5 * (a - b) ** 2 / c, np.abs(a - b) - 0.5 * c
    ),
    "smooth_l1_backward": lambda a, b, c, d, e: d * c * np.clip((a - b) / e, -1, 1),
    "huber": lambda a, b, c: np.where(
        np.abs(a - b) < c, 0.5 * (a - b) ** 2, c * (np.abs(a - b) - 0.5 * c)
    ),
    "huber_backward": lambda a, b, c, d, e: d * c * np.clip(a - b, -e, e),
    "cross_entropy_backward": lambda a, b, c: a * (b - c) / np.maximum((1 - b) * b, 1e-12),
    "nan_to_num": lambda a, b, c, d: np.nan_to_num(a, nan=b, posinf=c, neginf=d),
}  # fmt: skip
NUMBERS = {"elu": 1, "softplus": 1, "elu_backward": 2, "elu_backward_of_result": 2,
           "softplus_backward": 2, "threshold": 2, "hardtanh_backward": 2,
           "leaky_relu_backward": 2, "nan_to_num": 1, "shrink_backward": 2,
           "logit_backward": 2, "smooth_l1": 2,
           "huber": 2}  # fmt: skip
"""From which operand on an operator has positive numbers; the others from the fourth on."""


def values(count: int, dtype: str, special: bool = True) -> np.ndarray:
    rng = np.random.default_rng(count)
    sizes = 10.0 ** rng.uniform(-4, 1, count) * rng.choice([-1, 1], count)
    return rounded([*(SPECIAL if special else []), *sizes], dtype)


def close(actual: np.ndarray, wanted: Any, dtype: str) -> None:
    if dtype == "float64":
        conformance.check(actual, wanted, dtype, limit=1e-13)
    else:
        check(actual, wanted, dtype)


def test_every_operator_has_a_case() -> None:
    questions = {"bitwise_not", "logical_not", "isnan", "isinf", "isfinite", "isposinf", "isneginf",
                 "arange", "cross_entropy"}  # fmt: skip
    bits = {"bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
    tested = {*UNARY, *BINARY, *COMPARISONS, *MORE, *questions, *bits}
    assert tested == set(launch.OPERANDS)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_unary(interpreter, op: str, dtype: str) -> None:
    x = values(300, dtype, special=op not in INFINITE_IS_DIFFERENT)
    out = interpreter.empty(x.shape, dtype)
    view = interpreter.view
    interpreter.run(launch.pointwise(op, dtype, view(out), view(interpreter.array(x, dtype))))
    with np.errstate(all="ignore"):
        close(out, UNARY[op](x), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BINARY)
def test_binary(interpreter, op: str, dtype: str) -> None:
    backward = op.endswith("backward") or op == "mse"
    x = values(300, dtype, special=False)
    y = np.random.default_rng(2).permutation(x)
    if not backward and op != "leaky_relu":
        pairs = np.array([(a, b) for a in (*SPECIAL, 2.5) for b in (*SPECIAL, 3.0)])
        if op in ("div_floor", "remainder", "fmod", "div_trunc"):
            pairs = pairs[np.isfinite(pairs).all(1)]
        x, y = np.concatenate([x, pairs[:, 0]]), np.concatenate([y, pairs[:, 1]])
    if op == "pow":
        y = np.where(np.abs(y) > 3, 2.0, y)
    out, number = interpreter.empty(x.shape, dtype), interpreter.empty(x.shape, dtype)
    view = interpreter.view
    a, b = (view(interpreter.array(each, dtype)) for each in (x, y))
    second = rounded(1.7, dtype).item()
    interpreter.run(
        launch.pointwise(op, dtype, view(out), a, b)
        + launch.pointwise(op, dtype, view(number), a, second)
    )
    for got, other in ((out, y), (number, np.float64(second))):
        with np.errstate(all="ignore"):
            wanted = BINARY[op](x, other)
            if op == "div_trunc":  # of the rounded quotient
                wanted = np.trunc(rounded(x / other, dtype))
            if op in ("div_floor", "remainder"):  # NumPy's have other zeros and infinities
                wanted = np.where(other == 0, (x / other if op == "div_floor" else np.nan), wanted)
            limit = 1e-9 if dtype == "float64" and backward else None
            if limit is not None:
                conformance.check(got, wanted, dtype, limit=limit)
            else:
                close(got, wanted, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", MORE)
def test_more_operands(interpreter, op: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    given: list[Any] = []
    for index in range(launch.OPERANDS[op]):
        if index < NUMBERS.get(op, 3):
            given.append(rounded(rng.standard_normal(200), dtype))
        else:
            given.append(rounded(0.3 + 0.4 * index, dtype).item())
    if op.startswith("where"):
        given[0] = rng.integers(0, 2, 200).astype(np.float64)
    if op == "nan_to_num":
        given[0][:3] = math.nan, math.inf, -math.inf
    if op == "cross_entropy_backward":
        given[1:] = rounded(rng.uniform(0.01, 0.99, 200), dtype), rounded(rng.random(200), dtype)
    if op == "clamp":
        given[0][0], given[1][1], given[2][2] = math.nan, math.nan, math.nan
    view = interpreter.view
    operands = [
        view(interpreter.array(each, dtype)) if isinstance(each, np.ndarray) else each
        for each in given
    ]
    if op.startswith("where"):
        operands[0] = view(interpreter.array(given[0], "bool"))
    out = interpreter.empty((200,), dtype)
    interpreter.run(launch.pointwise(op, dtype, view(out), *operands))
    close(out, MORE[op](*given), dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_questions_and_comparisons(interpreter, dtype: str) -> None:
    floating = dtype in FLOATS
    x = np.array([*(SPECIAL if floating else []), *range(-3, 4)]).astype(numpy_dtype(dtype))
    y = np.roll(x, 3)
    view = interpreter.view
    a, b = (view(interpreter.array(each, dtype)) for each in (x, y))
    wide = [x.astype(np.float64), y.astype(np.float64)]
    for op, function in COMPARISONS.items():
        out, number = interpreter.empty(x.shape, "bool"), interpreter.empty(x.shape, "bool")
        interpreter.run(
            launch.pointwise(op, dtype, view(out), a, b)
            + launch.pointwise(op, dtype, view(number), a, 1)
        )
        np.testing.assert_array_equal(out.view(np.uint8), function(*wide))
        np.testing.assert_array_equal(number.view(np.uint8), function(wide[0], 1.0))
    questions = {"logical_not": np.logical_not, "isnan": np.isnan, "isinf": np.isinf,
                 "isfinite": np.isfinite, "isposinf": np.isposinf,
                 "isneginf": np.isneginf}  # fmt: skip
    for op, question in questions.items():
        if floating or op == "logical_not":
            out = interpreter.empty(x.shape, "bool")
            interpreter.run(launch.pointwise(op, dtype, view(out), a))
            np.testing.assert_array_equal(out.view(np.uint8), question(wide[0]))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(interpreter, dtype: str) -> None:
    """Exact, and wrapping, to the ends of the range."""
    kind = np.iinfo(dtype)
    rng = np.random.default_rng(6)
    x = np.concatenate([[kind.min, kind.max, 0, 1], rng.integers(kind.min, kind.max, 60)])
    x = x.astype(dtype)
    y = np.concatenate([[3, 5, 7, 2], rng.integers(1, 9, 60)]).astype(dtype)
    signed = kind.min < 0
    if signed:
        y[::2] = -y[::2]
    python = [(int(a), int(b)) for a, b in zip(x, y)]

    def wrapped(numbers: list[int]) -> np.ndarray:
        bits = kind.bits
        low = [number % 2**bits for number in numbers]
        return np.array([n - 2**bits if signed and n >= 2 ** (bits - 1) else n for n in low], dtype)

    def whole(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    def power(a: int, b: int) -> int:
        if b >= 0:
            return a**b
        return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)

    functions: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "div_floor": lambda a, b: a // b, "remainder": lambda a, b: a % b, "div_trunc": whole,
        "fmod": lambda a, b: a - b * whole(a, b), "pow": power, "maximum": max, "minimum": min,
        "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b,
        "bitwise_xor": lambda a, b: a ^ b,
        "left_shift": lambda a, b: a << b if b >= 0 else 0,
        "right_shift": lambda a, b: a >> (b if b >= 0 else kind.bits),
    }  # fmt: skip
    view = interpreter.view
    a, b = (view(interpreter.array(each, dtype)) for each in (x, y))
    for op, function in functions.items():
        out = interpreter.empty(x.shape, dtype)
        interpreter.run(launch.pointwise(op, dtype, view(out), a, b))
        np.testing.assert_array_equal(out, wrapped([function(*pair) for pair in python]), op)
    singles = {"neg": lambda n: -n, "abs": abs, "bitwise_not": lambda n: ~n,
               "sign": lambda n: (n > 0) - (n < 0)}  # fmt: skip
    for op, single in singles.items():
        out = interpreter.empty(x.shape, dtype)
        interpreter.run(launch.pointwise(op, dtype, view(out), a))
        np.testing.assert_array_equal(out, wrapped([single(n) for n, _ in python]), op)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_of_many_bits(interpreter, dtype: str) -> None:
    x = rounded([1e30, -3e38, 1e20, 2.0**64, 5.0, -1e30, 3e38], dtype)
    y = rounded([0.3, 0.7, 3.0, 3.0, 3.0, -0.3, 1e-30], dtype)
    if dtype == "float64":  # the last quotient is no float64
        x, y = np.append(x, 1.7e308), np.append(y, 3e-300)
    view = interpreter.view
    a, b = (view(interpreter.array(each, dtype)) for each in (x, y))
    fmod, remainder = interpreter.empty(x.shape, dtype), interpreter.empty(x.shape, dtype)
    interpreter.run(
        launch.pointwise("fmod", dtype, view(fmod), a, b)
        + launch.pointwise("remainder", dtype, view(remainder), a, b)
    )
    exact = [math.fmod(left, right) for left, right in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_array_equal(np.float64(fmod), exact)
    above = [
        rest + right if rest * right < 0 else rest
        for rest, right in zip(exact, y.tolist(), strict=True)
    ]
    np.testing.assert_allclose(np.float64(remainder), above, rtol=1e-6)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
def test_conversions(interpreter, source: str) -> None:
    x = np.array([0, 1, 2, 3, 100, 126] if source != "bool" else [0, 1, 1, 0, 1, 0])
    x = x.astype(numpy_dtype(source))
    if source in FLOATS:
        x[1] = 0.75
    view = interpreter.view
    given = view(interpreter.array(x, source))
    for target in [*FLOATS, *INTEGERS, "bool"]:
        out = interpreter.empty(x.shape, target)
        interpreter.run(launch.copy(view(out), given))
        np.testing.assert_array_equal(out, x.astype(np.float64).astype(numpy_dtype(target)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy(interpreter, dtype: str) -> None:
    """Logarithms end at -100."""
    rng = np.random.default_rng(7)
    x, y = rounded([0, 1, *rng.random(50)], dtype), rounded([1, 1, *rng.random(50)], dtype)
    view = interpreter.view
    out = interpreter.empty(x.shape, dtype)
    operands = [view(interpreter.array(each, dtype)) for each in (x, y)]
    interpreter.run(launch.pointwise("cross_entropy", dtype, view(out), *operands))
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(x), -100), np.maximum(np.log1p(-x), -100)
    close(out, -y * logs[0] - (1 - y) * logs[1], dtype)


def test_numbers_are_exact(interpreter) -> None:
    view = interpreter.view
    for dtype, number in (("int64", 2**62 + 1), ("int64", -(2**63)), ("float64", 0.1),
                          ("float64", 1e300), ("float32", 0.1), ("bool", 1)):  # fmt: skip
        out = interpreter.empty((3,), dtype)
        interpreter.run(launch.pointwise("copy", dtype, view(out), number))
        assert (out == numpy_dtype(dtype).type(number)).all()


def test_operands_are_rounded_to_the_dtype_of_the_operator(interpreter) -> None:
    """2049 is no float16, and the sum is rounded to float16 before it is stored as float32."""
    view = interpreter.view
    out = interpreter.empty((1,), "float32")
    operands = [view(interpreter.array([2049], "int64")), view(interpreter.array([1], "float16"))]
    interpreter.run(launch.pointwise("add", "float16", view(out), *operands))
    assert out[0] == 2048


def test_arange(interpreter) -> None:
    view = interpreter.view
    whole, part = interpreter.empty((1500,), "int64"), interpreter.empty((1500,), "float32")
    interpreter.run(
        launch.pointwise("arange", "int64", view(whole), -3, 7)
        + launch.pointwise("arange", "float64", view(part), 0.1, 0.1)
    )
    np.testing.assert_array_equal(whole, -3 + 7 * np.arange(1500))
    np.testing.assert_array_equal(part, (0.1 + 0.1 * np.arange(1500)).astype(np.float32))


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rows": lambda x: x, "transposed": lambda x: x.swapaxes(0, -1).copy().swapaxes(0, -1),
    "stepped": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "broadcast": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "first": lambda x: np.broadcast_to(x[:1], x.shape),
    "one": lambda x: np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape),
}  # fmt: skip
SHAPES = [(40, 30), (3, 4, 5), (3, 1, 4, 5), (2, 3, 2, 3, 2), (2, 3, 2, 2, 2, 3),
          (2, 2, 2, 3, 2, 2, 2, 2)]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", ["rows", "transposed", "first"])
def test_layouts(interpreter, shape: tuple[int, ...], layout: str, other: str) -> None:
    rng = np.random.default_rng(8)
    x = LAYOUTS[layout](rng.standard_normal(shape).astype(np.float32))
    y = LAYOUTS[other](rng.standard_normal(shape).astype(np.float32))
    view = interpreter.view
    a, b = (view(interpreter.strided(each)) for each in (x, y))
    out = interpreter.empty(shape, "float32")
    turned = interpreter.empty(shape[::-1], "float32").transpose()
    interpreter.run(
        launch.pointwise("add", "float32", view(out), a, b)
        + launch.pointwise("mul", "float32", view(turned), a, b)
    )
    np.testing.assert_array_equal(out, x + y)
    np.testing.assert_array_equal(turned, x * y)


def test_kernels_by_layout() -> None:
    x = contiguous_view(0, "float32", (8, 6))
    turned = View(0, "float32", (6, 8), (1, 6))
    assert launch.pointwise("add", "float32", x, x, 1.0)[0].definition is launch.FLAT
    assert launch.pointwise("add", "float32", turned, turned, turned)[0].definition is launch.FLAT
    row = View(0, "float32", (8, 6), (0, 1))
    assert launch.pointwise("add", "float32", x, x, row)[0].definition is launch.STRIDED
    assert launch.pointwise("add", "float32", contiguous_view(0, "float32", (0, 6)), x, x) == []
    with pytest.raises(TypeError, match=r"\[add\] got 1 operands, wanted 2"):
        launch.pointwise("add", "float32", x, x)


def test_indices_of_64_bits(interpreter) -> None:
    """The kernel's wide form, which more than 2^31 elements take."""
    x = np.random.default_rng(9).standard_normal((7, 200)).astype(np.float32)
    view = interpreter.view
    out = interpreter.empty((200, 7), "float32")
    source = interpreter.view(interpreter.array(x, "float32"))
    turned = View(source.pointer, "float32", (200, 7), (1, 200))
    (one,) = launch.pointwise("copy", "float32", view(out), turned)
    assert not one.values["WIDE"]
    interpreter.run([launch.STRIDED(one.grid, **{**one.values, "WIDE": True})])
    np.testing.assert_array_equal(out, x.T)
    big = contiguous_view(0, "int8", (2**16, 2**15))
    (one,) = launch.pointwise("neg", "int8", big, View(0, "int8", big.shape, (1, 2**16)))
    assert one.values["WIDE"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", [75, 90])
def test_every_operator_compiles(architecture: int) -> None:
    pytest.importorskip("triton")
    whole = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
    both = {"div_floor", "div_trunc", "remainder", "fmod", "pow", "neg", "abs", "sign", "add"}
    for op, count in launch.OPERANDS.items():
        dtypes = {"int64"} if op in whole else {"float32", "float64"}
        for dtype in sorted(dtypes | ({"int64"} if op in both else set())):
            x = contiguous_view(0, dtype, (64, 16))
            operands = [x] * min(count, 3) + [1.0] * (count - 3)
            (one,) = launch.pointwise(op, dtype, x, *operands)
            compile_for(one.specialisation(), architecture)
