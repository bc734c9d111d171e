"""The product's kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ruda_blas.gemm import launch, reference

from .gemm.cases import CASES, PANELS, Case, inputs
from .kernels_support import DTYPES, check, compile_tests, interpreter_fixture

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())


def run(interpreter, case: Case, dtype: str, **options: Any) -> None:
    given = inputs(case, dtype)
    wanted = reference.addmm(
        given["a"], given["b"], given["bias"], given["out"], case.alpha, case.beta
    )
    memory = {name: None if array is None else interpreter.strided(array)
              for name, array in given.items()}  # fmt: skip
    views = {name: interpreter.view(array) for name, array in memory.items()}
    interpreter.run(
        launch.product(views["a"], views["b"], views["bias"], views["out"], case.alpha, case.beta,
                       interpreter.scratch, **options)
    )  # fmt: skip
    check(memory["out"], wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(interpreter, case: Case, dtype: str) -> None:
    run(interpreter, case, dtype)


@pytest.mark.parametrize("case", PANELS, ids=lambda case: case.name)
def test_large(interpreter, case: Case) -> None:
    run(interpreter, case, "float32")


@pytest.mark.parametrize("splits", [2, 3, 16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        Case((17, 333), (333, 65), alpha=-0.5, beta=0.25, bias=True),
        Case((2, 3, 5, 70), (3, 70, 9), "cols", "strided", "reversed"),
        Case((3, 1, 100), (3, 100, 70), bias=True),
    ],
    ids=lambda case: case.name,
)
def test_splits(interpreter, case: Case, dtype: str, splits: int) -> None:
    run(interpreter, case, dtype, splits=splits)


@pytest.mark.parametrize("tile", [launch.Tile(32, 32, 16, 4, 2), launch.Tile(16, 16, 64, 4, 2)])
def test_other_tiles(interpreter, tile: launch.Tile) -> None:
    run(interpreter, Case((70, 45), (45, 100), bias=True), "float32", tile=tile)


@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize(("left", "right"), [("float16",) * 2, ("float32", "bfloat16")])
def test_results_and_operands_of_other_dtypes(interpreter, left, right, out_dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = interpreter.array(rng.standard_normal((20, 50)), left)
    b = interpreter.array(rng.standard_normal((50, 70)), right)
    bias = interpreter.array(rng.standard_normal(70), "bfloat16")
    out = interpreter.empty((20, 70), out_dtype)
    views = [interpreter.view(array) for array in (a, b, bias, out)]
    interpreter.run(launch.product(*views, 1.0, 0.0, interpreter.scratch))
    wide = (array.astype(np.float64) for array in (a, b, bias))
    check(out, reference.addmm(*wide), out_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity(interpreter, dtype: str) -> None:
    """A zero times infinity is NaN, and stays in its row or column, though tiles are padded."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((7, 129)), rng.standard_normal((129, 70))
    a[0, 3], a[6, 128], b[128, 69], b[11, 18] = np.nan, np.inf, -np.inf, 0.0
    a[1, 128] = 0.0
    given = [interpreter.array(value, dtype) for value in (a, b)]
    out = interpreter.empty((7, 70), dtype)
    wanted = reference.addmm(*(array.astype(np.float64) for array in given))
    assert np.isnan(wanted).any() and np.isinf(wanted).any()
    views = [interpreter.view(array) for array in (*given, None, out)]
    interpreter.run(launch.product(*views, 1.0, 0.0, interpreter.scratch))
    check(out, wanted, dtype)
