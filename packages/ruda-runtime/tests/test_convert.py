"""The float16 and bfloat16 conversions of convert.hpp against NumPy and ml_dtypes, bit for bit."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

TYPES = {"half": np.float16, "bfloat": ml_dtypes.bfloat16}


@pytest.fixture(params=["probe", "fast_probe"])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return request.getfixturevalue(request.param)


def interesting_floats() -> np.ndarray:
    """Every value of both types, the midpoints between them with their neighbours, and noise."""
    parts = [np.random.default_rng(0).integers(0, 2**32, 300_000, dtype=np.uint32)]
    for dtype in TYPES.values():
        values = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32).view(np.uint32)
        # Half the distance to the next float16 is at most 2^12 in float32's last places.
        step = 2**12 if dtype is np.float16 else 2**15
        for offset in (0, step - 1, step, step + 1):
            parts.append(values + np.uint32(offset))
    # Around the smallest and largest float16 values, densely.
    for center in (2.0**-24, 2.0**-25, 2.0**-14, 65504.0, 65520.0, 3.0e38):
        bits = np.float32(center).view(np.uint32)
        parts.append(bits + np.arange(-2000, 2000, dtype=np.int64).astype(np.uint32))
    bits = np.concatenate(parts)
    return np.concatenate([bits, bits ^ np.uint32(0x80000000)]).view(np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_widening_is_exact_for_every_value(library: ctypes.CDLL, name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    got = np.empty(bits.size, np.float32)
    function = getattr(library, f"probe_{name}_to_float")
    function(ctypes.c_void_p(bits.ctypes.data), ctypes.c_void_p(got.ctypes.data),
             ctypes.c_int64(bits.size))  # fmt: skip
    want = bits.view(TYPES[name]).astype(np.float32)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


@pytest.mark.parametrize("name", TYPES)
def test_narrowing_rounds_to_nearest_even(library: ctypes.CDLL, name: str) -> None:
    values = interesting_floats()
    got = np.empty(values.size, np.uint16)
    function = getattr(library, f"probe_float_to_{name}")
    function(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(got.ctypes.data),
             ctypes.c_int64(values.size))  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        want = values.astype(TYPES[name])
    nan = np.isnan(values)
    assert nan.any() and np.isinf(want[~nan].astype(np.float32)).any()
    assert np.array_equal(np.isnan(got.view(TYPES[name]).astype(np.float32)), nan)
    assert np.array_equal(got[~nan], want[~nan].view(np.uint16))
    assert np.array_equal(got[nan] >> 15, values[nan].view(np.uint32) >> 31)  # NaN keeps its sign
