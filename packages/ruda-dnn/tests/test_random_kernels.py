"""The random kernels, interpreted, against Philox in NumPy; and compiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ruda_dnn.random import launch

from .kernels_support import compile_tests, interpreter_fixture

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

FLOATING = ["float32", "float16", "bfloat16", "float64"]
DIGITS = {"float32": 24, "float16": 11, "bfloat16": 8}
COUNT = 2500  # three programs of one word an element, the last one in part
SEED = -0x123456789ABCDEF
FIRST = 2**32 - 100  # the counter's second word changes within the range


def philox(seed: int, first: int, blocks: int) -> np.ndarray:
    """uint64[4 * blocks], each below 2^32."""
    mask = np.uint64(0xFFFFFFFF)
    place = np.arange(first, first + blocks, dtype=np.uint64)
    c = [place & mask, place >> np.uint64(32), np.zeros_like(place), np.zeros_like(place)]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        left, right = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            right >> np.uint64(32) ^ c[1] ^ np.uint64(key[0]),
            right & mask,
            left >> np.uint64(32) ^ c[3] ^ np.uint64(key[1]),
            left & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1).reshape(-1)


def narrow(count: int = COUNT) -> np.ndarray:
    return philox(SEED, FIRST, -(-count // 4))[:count]


def wide(count: int = COUNT) -> np.ndarray:
    words = philox(SEED, FIRST, -(-count // 2))
    return (words[1::2] << np.uint64(32) | words[::2])[:count]


def unit_open(dtype: str) -> np.ndarray:
    if dtype == "float64":
        return ((wide() >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return ((narrow() >> np.uint64(9)).astype(np.float64) + 0.5) * 2.0**-23


def test_the_reference_knows_the_published_numbers() -> None:
    # philox4x32-10 of the counter 0 and the key 0, from the authors' known answers
    assert [hex(int(w)) for w in philox(0, 0, 1)] == [
        "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.3, 0.7), (3.0, 3.0), (-5.0, -1.5)])
def test_uniform_is_bit_equal(interpreter, dtype: str, low: float, high: float) -> None:
    y = interpreter.empty((COUNT,), dtype)
    kind = np.float64 if dtype == "float64" else np.float32
    start, end = y.dtype.type(low), y.dtype.type(high)
    extent = kind(high) - kind(low)
    interpreter.run(
        launch.uniform(interpreter.view(y), SEED, FIRST, float(start), float(end), float(extent))
    )
    if dtype == "float64":
        unit = (wide() >> np.uint64(11)).astype(np.float64) * 2.0**-53
    else:
        digits = DIGITS[dtype]
        unit = (narrow() >> np.uint64(32 - digits)).astype(np.float32) / np.float32(1 << digits)
    right = (unit * extent + kind(start)).astype(y.dtype)
    right = np.where((right < end) | (start == end), right, start)
    np.testing.assert_array_equal(y, right)
    assert (y >= start).all()
    assert low == high or (y < end).all()


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-2.0, 0.02), (1.5, 0.0)])
def test_normal(interpreter, dtype: str, mean: float, std: float) -> None:
    y = interpreter.empty((COUNT,), dtype)
    interpreter.run(launch.normal(interpreter.view(y), SEED, FIRST, mean, std))
    if dtype == "float64":
        bits = wide().reshape(-1, 2)
        unit = ((bits[:, 0] >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        turn = (bits[:, 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        tolerance = 1e-14
    else:
        pair = narrow().reshape(-1, 2)
        unit = ((pair[:, 0].astype(np.float32) + np.float32(0.5)) * 2.0**-32).astype(np.float64)
        turn = (pair[:, 1] >> np.uint64(8)).astype(np.float64) * 2.0**-24
        tolerance = {"float32": 1e-6, "float16": 6e-4, "bfloat16": 5e-3}[dtype]
    radius = np.sqrt(-2.0 * np.log(unit))
    right = np.stack([radius * np.cos(2 * np.pi * turn), radius * np.sin(2 * np.pi * turn)], 1)
    right = right.reshape(-1) * std + mean
    difference = np.abs(y.astype(np.float64) - right)
    assert (difference <= tolerance * (np.abs(right) + std)).all()


@pytest.mark.parametrize("dtype", FLOATING)
def test_exponential(interpreter, dtype: str) -> None:
    y = interpreter.empty((COUNT,), dtype)
    least = float(ml_dtypes.finfo(y.dtype).smallest_subnormal)
    interpreter.run(launch.exponential(interpreter.view(y), SEED, FIRST, -1 / 1.5, least))
    right = -np.log(unit_open(dtype)) / 1.5
    tolerance = {"float64": 1e-14, "float32": 1e-6, "float16": 6e-4, "bfloat16": 5e-3}[dtype]
    np.testing.assert_allclose(y.astype(np.float64), right, rtol=tolerance, atol=0.0)
    assert (y > 0).all()


@pytest.mark.parametrize("dtype", FLOATING)
def test_cauchy(interpreter, dtype: str) -> None:
    y = interpreter.empty((COUNT,), dtype)
    interpreter.run(launch.cauchy(interpreter.view(y), SEED, FIRST, 0.5, 2.0))
    right = 0.5 + 2.0 * np.tan(np.pi * (unit_open(dtype) - 0.5))
    narrow = dtype != "float64"
    # an angle is rounded, which far from the median is a step of 2^-24 / (pi / 2 - angle)
    slack = np.abs(right) * (1e-7 if narrow else 1e-15) * (1 + np.abs(right))
    tolerance = {"float64": 1e-14, "float32": 1e-6, "float16": 6e-4, "bfloat16": 5e-3}[dtype]
    finite = np.abs(right) < (6e4 if dtype == "float16" else np.inf)
    error = np.abs(y.astype(np.float64) - right)
    assert (error <= tolerance * (1 + np.abs(right)) + slack)[finite].all()


def test_exponential_is_never_zero(interpreter) -> None:
    y = interpreter.empty((COUNT,), "float16")
    interpreter.run(launch.exponential(interpreter.view(y), SEED, FIRST, -1e-9, 2.0**-24))
    np.testing.assert_array_equal(y, np.full(COUNT, 2.0**-24, np.float16))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize(("extent", "base"), [(100, 0), (1, 7), (256, 0), (3, 2)])
def test_integers(interpreter, dtype: str, extent: int, base: int) -> None:
    y = interpreter.empty((COUNT,), dtype)
    interpreter.run(launch.integers(interpreter.view(y), SEED, FIRST, extent, base))
    right = [base + (int(bits) * extent >> 64) for bits in wide()]
    np.testing.assert_array_equal(y, right)


@pytest.mark.parametrize(
    ("extent", "base"), [(0, 0), (2**63 + 5, -(2**63)), (2**64 - 1, -(2**63)), (10, -4)]
)
def test_long_integers(interpreter, extent: int, base: int) -> None:
    y = interpreter.empty((COUNT,), "int64")
    signed = extent - 2**64 if extent >= 2**63 else extent
    interpreter.run(launch.integers(interpreter.view(y), SEED, FIRST, signed, base))
    drawn = wide() if extent == 0 else [int(bits) * extent >> 64 for bits in wide()]
    right = np.array([(base + int(each)) % 2**64 for each in drawn], np.uint64).view(np.int64)
    np.testing.assert_array_equal(y, right)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool"])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli(interpreter, dtype: str, p: float) -> None:
    y = interpreter.empty((COUNT,), dtype)
    threshold = int(p * 2**32)
    interpreter.run(launch.bernoulli(interpreter.view(y), SEED, FIRST, threshold))
    np.testing.assert_array_equal(y.astype(np.float32), (narrow() < threshold).astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATING)
def test_bernoulli_with_a_probability_for_each(interpreter, dtype: str) -> None:
    chances = np.random.default_rng(1).random(COUNT)
    chances[:2] = 0.0, 1.0
    p = interpreter.array(chances, dtype)
    y, wrong = interpreter.empty((COUNT,), "bool"), interpreter.array(np.zeros(1), "int32")
    view = interpreter.view
    interpreter.run(launch.bernoulli_each(view(y), view(p), view(wrong), SEED, FIRST))
    np.testing.assert_array_equal(y, narrow() * 2.0**-32 < p.astype(np.float64))
    assert wrong[0] == 0


@pytest.mark.parametrize("value", [-0.01, 1.01, np.nan])
def test_a_wrong_probability_is_noted(interpreter, value: float) -> None:
    chances = np.full(COUNT, 0.5)
    chances[1700] = value
    p, wrong = interpreter.array(chances, "float32"), interpreter.array(np.zeros(1), "int32")
    y, view = interpreter.empty((COUNT,), "bool"), interpreter.view
    interpreter.run(launch.bernoulli_each(view(y), view(p), view(wrong), SEED, FIRST))
    assert wrong[0] == 1


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("p", [0.1, 1.0])
def test_dropout(interpreter, dtype: str, p: float) -> None:
    x = interpreter.array(np.random.default_rng(2).standard_normal(COUNT), dtype)
    y, mask = interpreter.empty((COUNT,), dtype), interpreter.empty((COUNT,), "bool")
    threshold, view = int((1 - p) * 2**32), interpreter.view
    kind = np.float64 if dtype == "float64" else np.float32
    scale = 0.0 if p == 1 else 1 / (1 - p)
    interpreter.run(launch.dropout(view(x), view(y), view(mask), SEED, FIRST, threshold, scale))
    kept = narrow() < threshold
    np.testing.assert_array_equal(mask, kept)
    right = x.astype(kind) * np.where(kept, kind(scale), kind(0))
    np.testing.assert_array_equal(y, right.astype(y.dtype))


def test_dropout_keeps_what_is_not_finite(interpreter) -> None:
    x = interpreter.array(np.full(COUNT, np.inf), "float32")
    y, mask = interpreter.empty((COUNT,), "float32"), interpreter.empty((COUNT,), "bool")
    view = interpreter.view
    interpreter.run(launch.dropout(view(x), view(y), view(mask), SEED, FIRST, 2**31, 2.0))
    np.testing.assert_array_equal(np.isinf(y), mask)
    np.testing.assert_array_equal(np.isnan(y), ~mask)
