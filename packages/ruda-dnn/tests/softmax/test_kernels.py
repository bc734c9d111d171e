"""The softmax kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_dnn.softmax import launch, reference
from ruda_runtime.conformance import rounded
from ruda_runtime.launch import contiguous_view

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, Case

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

RUNS = [
    pytest.param(case, dtype, name, loop, id=f"{name}-{case.name}-{dtype}-{loop}")
    for name in ("softmax", "log_softmax")
    for case in CASES
    for dtype in DTYPES
    for loop in ("whole", "loop")
    # a program a row is slow, and blocks of 64 more so
    if case.name not in ("many_rows", "longer_than_kept") or (loop, dtype) == ("whole", "float32")
]


@pytest.mark.parametrize(("case", "dtype", "name", "loop"), RUNS)
def test_values_and_gradients(
    interpreter, monkeypatch, case: Case, dtype: str, name: str, loop: str
) -> None:
    if loop == "loop":
        blocks = {"BLOCK": 64, "ONE_PASS": False}
        monkeypatch.setattr(launch, "row_blocks", lambda count: blocks)
    rng = np.random.default_rng(5)
    x = rounded(case.x(rng), dtype)
    grad = rounded(rng.standard_normal(x.shape), dtype)
    given, upper = interpreter.array(x, dtype), interpreter.array(grad, dtype)
    y, dx = interpreter.empty(x.shape, dtype), interpreter.empty(x.shape, dtype)
    view, axis, logarithm = interpreter.view, case.axis % x.ndim, name == "log_softmax"
    interpreter.run(
        launch.softmax_forward(view(given), view(y), axis, logarithm)
        + launch.softmax_backward(view(upper), view(y), view(dx), axis, logarithm)
    )
    check(y, getattr(reference, name)(x, axis), dtype)
    right = getattr(reference, f"{name}_backward")(grad, y.astype(np.float64), axis)
    check(dx, right, dtype, long_reduction=True)


def test_too_many_slices_are_refused() -> None:
    x = contiguous_view(0, "float32", (65536, 2, 3))
    with pytest.raises(NotImplementedError, match=r"\[softmax\] axis: got 1 of shape"):
        launch.softmax_forward(x, x, 1, False)
