"""The normalisation kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ruda_dnn.normalization import launch, reference
from ruda_runtime import conformance
from ruda_runtime.conformance import rounded

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, LAYER_CASES, Case

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

RUNS = [
    pytest.param(case, dtype, weight_dtype, id=f"{case.name}-{dtype}-{weight_dtype}")
    for case in CASES + LAYER_CASES
    for dtype in case.dtypes
    for weight_dtype in dict.fromkeys([dtype, "float32"])
    if case.name != "many_rows" or weight_dtype == "bfloat16"  # a program a row: slow
]


@pytest.fixture(params=[False, True], ids=["whole", "loop"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Rows in registers and rows in blocks, whatever their width."""
    blocks = {"BLOCK": 256, "ONE_PASS": False}

    def choose(width: int, aligned: bool) -> dict[str, Any]:
        return blocks if request.param else {"BLOCK": 1 << width.bit_length(), "ONE_PASS": True}

    monkeypatch.setattr(launch, "row_blocks", choose)
    return request.param


def inputs(case: Case, dtype: str, weight_dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    x = rounded(case.x(rng), dtype)
    weight = None if case.weight is None else rounded(case.weight(rng), weight_dtype)
    bias = None if weight is None else rounded(rng.standard_normal(weight.shape), weight_dtype)
    return x, weight, bias, rounded(rng.standard_normal(x.shape), dtype)


@pytest.mark.parametrize(("case", "dtype", "weight_dtype"), RUNS)
def test_rms_norm(interpreter, case: Case, dtype: str, weight_dtype: str, loop: bool) -> None:
    if loop and case.name == "many_rows":
        pytest.skip("slow when interpreted in small blocks")
    x, weight, _, grad = inputs(case, dtype, weight_dtype)
    given = [interpreter.array(x, dtype), interpreter.array(weight, weight_dtype)]
    upper = interpreter.array(grad, dtype)
    y, dx = interpreter.empty(x.shape, dtype), interpreter.empty(x.shape, dtype)
    rows = x.size // x.shape[-1]
    rstd = interpreter.empty((rows,), "float32")
    view = interpreter.view
    interpreter.run(
        launch.rms_norm_forward(*map(view, (*given, y, rstd)), case.epsilon, interpreter.scratch)
    )
    wanted, wanted_rstd = reference.rms_norm(x, weight, case.epsilon)
    check(y, wanted, dtype)
    np.testing.assert_allclose(rstd, wanted_rstd, rtol=2e-6)
    dweight = None if weight is None else interpreter.empty(weight.shape, weight_dtype)
    interpreter.run(
        launch.rms_norm_backward(
            *map(view, (*given, upper, rstd, dx, dweight)), 0, interpreter.scratch
        )
    )
    right = reference.rms_norm_backward(x, weight, grad, case.epsilon)
    check(dx, right[0], dtype, long_reduction=True)
    if dweight is not None:
        check(dweight, right[1], weight_dtype, long_reduction=True)


@pytest.mark.parametrize(("case", "dtype", "weight_dtype"), RUNS)
def test_layer_norm(interpreter, case: Case, dtype: str, weight_dtype: str, loop: bool) -> None:
    if loop and case.name == "many_rows":
        pytest.skip("slow when interpreted in small blocks")
    if case.name in ("one_element", "constant_1234"):
        pytest.skip("the mean takes all: only rounding is left")
    x, weight, bias, grad = inputs(case, dtype, weight_dtype)
    given = [interpreter.array(v, kind) for v, kind in
             ((x, dtype), (weight, weight_dtype), (bias, weight_dtype))]  # fmt: skip
    upper = interpreter.array(grad, dtype)
    y, dx = interpreter.empty(x.shape, dtype), interpreter.empty(x.shape, dtype)
    rows, width = x.size // x.shape[-1], x.shape[-1]
    mean, rstd = interpreter.empty((rows,), "float32"), interpreter.empty((rows,), "float32")
    view = interpreter.view
    interpreter.run(
        launch.layer_norm_forward(
            *map(view, (*given, y, mean, rstd)), case.epsilon, interpreter.scratch
        )
    )
    wanted, wanted_mean, wanted_rstd = reference.layer_norm(x, weight, bias, case.epsilon)
    check(y, wanted, dtype)
    size = np.abs(x[np.isfinite(x)]).max(initial=0.0)
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-6, atol=1e-7 * size)
    np.testing.assert_allclose(rstd, wanted_rstd, rtol=2e-6)
    dweight = None if weight is None else interpreter.empty((width,), weight_dtype)
    stored = "float32" if weight is None else weight_dtype
    dbias = interpreter.empty((width,), stored)
    interpreter.run(
        launch.layer_norm_backward(
            *map(view, (given[0], given[1], upper, mean, rstd, dx, dweight, dbias)), 0,
            interpreter.scratch,
        )
    )  # fmt: skip
    right = reference.layer_norm_backward(x, weight, grad, case.epsilon)
    check(dx, right[0], dtype, long_reduction=True)
    if dweight is not None:
        check(dweight, right[1], weight_dtype, long_reduction=True)
    check(dbias, right[2], stored, long_reduction=True)


@pytest.mark.parametrize("wanted", list(itertools.product((False, True), repeat=3)))
def test_only_the_wanted_gradients(interpreter, wanted: tuple[bool, bool, bool]) -> None:
    rng = np.random.default_rng(2)
    x, grad, weight = (rounded(rng.standard_normal(s), "float32") for s in ((3, 40), (3, 40), 40))
    _, mean, rstd = reference.layer_norm(x, weight, None, 1e-5)
    views = [interpreter.view(interpreter.array(v, "float32"))
             for v in (x, weight, grad, mean, rstd)]  # fmt: skip
    shapes = (x.shape, (40,), (40,))
    results = [interpreter.empty(shape, "float32") if wish else None
               for wish, shape in zip(wanted, shapes)]  # fmt: skip
    interpreter.run(
        launch.layer_norm_backward(*views, *map(interpreter.view, results), 2, interpreter.scratch)
    )
    for result, right in zip(results, reference.layer_norm_backward(x, weight, grad, 1e-5)):
        if result is not None:
            check(result, right, "float32", long_reduction=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_memory_gives_the_values_of_aligned(interpreter, dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 48))
    results = []
    for shift in (0, conformance.numpy_dtype(dtype).itemsize):
        given = interpreter.view(interpreter.array(x, dtype, shift))
        y = interpreter.empty(x.shape, dtype)
        interpreter.run(
            launch.rms_norm_forward(given, None, interpreter.view(y), None, 1e-5,
                                    interpreter.scratch)
        )  # fmt: skip
        results.append(y.astype(np.float64))
    np.testing.assert_allclose(*results, rtol=1e-2 if dtype == "bfloat16" else 2e-3)
