"""The kernels of the linear cross entropy, interpreted, against float64; and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ruda_dnn.loss import launch, reference
from ruda_runtime.conformance import rounded

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, IGNORE, Case

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())


class Result:
    """The loss and its gradients, and what the reference gives."""

    def __init__(
        self, interpreter: Any, given: dict, dtype: str, head_dtype: str | None = None,
        chunk: int = 0, gradients: tuple = (True, True, True), known: bool = True,
    ) -> None:  # fmt: skip
        head_dtype = head_dtype or dtype
        rows, (classes, width) = len(given["target"]), given["head"].shape
        view, empty = interpreter.view, interpreter.empty
        hidden = interpreter.array(given["hidden"], dtype)
        head = interpreter.array(given["head"], head_dtype)
        bias = interpreter.array(given["bias"], head_dtype)
        target = interpreter.array(given["target"], "int64")
        index, self.stats = empty((rows,), "int64"), empty((2,), "int64")
        interpreter.run(
            launch.find_targets(view(target), classes, IGNORE, view(index), view(self.stats))
        )
        self.loss, self.count = empty((1,), "float32"), empty((1,), "int64")
        shapes = ((rows, width), (classes, width), (classes,))
        gradients = (*gradients[:2], gradients[2] and bias is not None)
        self.gradients = [empty(shape, "float32") if wish else None
                          for shape, wish in zip(shapes, gradients)]  # fmt: skip
        interpreter.run(
            launch.linear_cross_entropy(
                *map(view, (hidden, head, bias, target, index, self.stats, self.loss, self.count)),
                *map(view, self.gradients), chunk, interpreter.scratch,
                valid=int(self.stats[0]) if known else None,
            )
        )  # fmt: skip
        pairs = ((given["hidden"], dtype), (given["head"], head_dtype), (given["bias"], head_dtype))
        exact = [None if value is None else rounded(value, kind) for value, kind in pairs]
        self.wanted = reference.linear_cross_entropy(*exact, given["target"], IGNORE)

    def compare(self) -> None:
        """Loss and gradients are float32 whatever the storage: float32's criteria hold."""
        check(self.loss[0], np.asarray(self.wanted.loss), "float32")
        assert self.count[0] == self.stats[0] == self.wanted.valid_rows
        for actual, right in zip(self.gradients, self.wanted[2:]):
            if actual is not None:
                check(actual, right, "float32", long_reduction=True)


@pytest.mark.parametrize("known", [True, False], ids=["counted", "not_read"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loss_and_gradients(
    request: pytest.FixtureRequest, interpreter, case: Case, dtype: str, known: bool
) -> None:
    large = case.classes > 20_000 or case.width > 1000
    if large and (not known or dtype != "bfloat16" or not request.config.getoption("--slow")):
        pytest.skip("slow when interpreted; --slow runs it in bfloat16")
    given = case.inputs(np.random.default_rng(21))
    Result(interpreter, given, dtype, chunk=case.token_chunk, known=known).compare()


@pytest.mark.parametrize(("dtype", "head_dtype"), [("bfloat16", "float32"), ("float32", "float16")])
def test_mixed_dtypes(interpreter, dtype: str, head_dtype: str) -> None:
    case = Case("mixed", 11, 20, 77, bias="normal", ignored="half")
    Result(interpreter, case.inputs(np.random.default_rng(3)), dtype, head_dtype).compare()


@pytest.mark.parametrize("which", range(4))
def test_each_gradient_alone(interpreter, which: int) -> None:
    case = Case("alone", 13, 10, 31, bias="normal", ignored="ends")
    given = case.inputs(np.random.default_rng(8))
    Result(interpreter, given, "float32", gradients=tuple(i == which for i in range(3))).compare()


def test_ignored_rows_are_never_read(interpreter) -> None:
    given = Case("nan", 10, 8, 20, ignored="half").inputs(np.random.default_rng(1))
    clean = dict(given, hidden=given["hidden"].copy())
    given["hidden"][::2] = np.nan
    result = Result(interpreter, given, "float32")
    result.wanted = Result(interpreter, clean, "float32").wanted
    result.compare()


@pytest.mark.parametrize("wrong", [20, -1, 2**40])
def test_the_first_wrong_target_is_found(interpreter, wrong: int) -> None:
    targets = np.zeros(3000, np.int64)
    targets[[0, 5]] = IGNORE
    targets[[1500, 2900]] = wrong
    view = interpreter.view
    stats = interpreter.empty((2,), "int64")
    index = view(interpreter.empty((3000,), "int64"))
    given = view(interpreter.array(targets, "int64"))
    interpreter.run(launch.find_targets(given, 20, IGNORE, index, view(stats)))
    assert stats.tolist() == [2998, 1500]


def test_minus_infinity(interpreter) -> None:
    """An impossible target costs infinity; a row of nothing but -inf is NaN."""
    given = {"hidden": np.ones((2, 3)), "head": np.ones((4, 3)), "target": np.array([1, 2])}
    for bias, right in (([0, -np.inf, 0, 0], np.inf), ([-np.inf] * 4, np.nan)):
        result = Result(interpreter, {**given, "bias": np.array(bias)}, "float32",
                        gradients=(False,) * 3)  # fmt: skip
        np.testing.assert_array_equal(result.loss[0], np.float32(right))
