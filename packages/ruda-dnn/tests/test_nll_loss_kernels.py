"""The kernels of the negative log likelihood, interpreted, against float64; and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_dnn.nll_loss import launch
from ruda_runtime.conformance import rounded
from ruda_runtime.launch import contiguous_view

from .kernels_support import DTYPES, check, compile_tests, interpreter_fixture

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

SHAPES = [(7, 5, 1), (1300, 3, 1), (2, 1500, 1), (3, 5, 7)]
IGNORED = -100


class Problem:
    """Inputs and the right loss and weight of every row."""

    def __init__(self, shape: tuple[int, int, int], dtype: str, weighted: bool) -> None:
        rng = np.random.default_rng(6)
        samples, classes, inner = shape
        self.x = rounded(-rng.random(shape) * 4, dtype)
        self.target = rng.integers(0, classes, (samples, inner))
        self.ignored = rng.random((samples, inner)) < 0.2
        self.target[self.ignored] = IGNORED
        self.weight = rounded(rng.random(classes) + 0.5, dtype) if weighted else None
        chosen = np.where(self.ignored, 0, self.target)
        scale = np.ones(chosen.shape) if self.weight is None else self.weight[chosen]
        self.scale = np.where(self.ignored, 0.0, scale)
        picked = np.take_along_axis(self.x, chosen[:, None], 1)[:, 0]
        self.loss = -picked * self.scale
        self.onehot = np.zeros(shape)
        np.put_along_axis(self.onehot, chosen[:, None], self.scale[:, None], 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [False, True])
def test_sums(interpreter, shape, dtype: str, weighted: bool, mean: bool) -> None:
    right = Problem(shape, dtype, weighted)
    view = interpreter.view
    x, target = interpreter.array(right.x, dtype), interpreter.array(right.target, "int64")
    weight, wrong = interpreter.array(right.weight, dtype), interpreter.array([0], "int64")
    y, total = interpreter.empty((1,), dtype), interpreter.empty((1,), dtype)
    interpreter.run(launch.forward(*map(view, (x, target, weight, y, total, wrong)), IGNORED, mean))
    whole = right.scale.sum()
    check(y, np.array([right.loss.sum() / (whole if mean else 1)]), dtype)
    check(total, np.array([whole]), dtype)
    assert wrong[0] == 0

    if shape[0] > 1000:  # a program for each
        return
    grad, dx = interpreter.array([rounded(1.5, dtype)], dtype), interpreter.empty(shape, dtype)
    divided = total if mean else None
    interpreter.run(
        launch.backward(*map(view, (grad, target, weight, divided, dx)), IGNORED, False)
    )
    scale = float(total.astype(np.float64)[0]) if mean else 1.0
    check(dx, -right.onehot * 1.5 / scale, dtype)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row(interpreter, shape, dtype: str, weighted: bool) -> None:
    right = Problem(shape, dtype, weighted)
    view = interpreter.view
    x, target = interpreter.array(right.x, dtype), interpreter.array(right.target, "int64")
    weight, wrong = interpreter.array(right.weight, dtype), interpreter.array([0], "int64")
    y = interpreter.empty(right.target.shape, dtype)
    interpreter.run(launch.forward_each(*map(view, (x, target, weight, y, wrong)), IGNORED))
    check(y, right.loss, dtype)

    if shape[0] > 1000:
        return
    upper = rounded(np.random.default_rng(7).standard_normal(y.shape), dtype)
    grad, dx = interpreter.array(upper, dtype), interpreter.empty(shape, dtype)
    interpreter.run(launch.backward(*map(view, (grad, target, weight, None, dx)), IGNORED, True))
    check(dx, -right.onehot * upper[:, None], dtype)


def test_ignored_rows_are_not_read(interpreter) -> None:
    view = interpreter.view
    x = interpreter.array(np.full((4, 3, 1), np.nan), "float32")
    target, wrong = interpreter.array([IGNORED] * 4, "int64"), interpreter.array([0], "int64")
    y, total = interpreter.empty((1,), "float32"), interpreter.empty((1,), "float32")
    interpreter.run(launch.forward(*map(view, (x, target, None, y, total, wrong)), IGNORED, False))
    assert (y[0], total[0], wrong[0]) == (0, 0, 0)
    interpreter.run(launch.forward(*map(view, (x, target, None, y, total, wrong)), IGNORED, True))
    assert np.isnan(y[0])


@pytest.mark.parametrize("bad", [-1, 3, 2**40])
@pytest.mark.parametrize("each", [False, True])
def test_a_target_that_is_no_class_is_noted(interpreter, bad: int, each: bool) -> None:
    view = interpreter.view
    x = interpreter.array(np.zeros((1200, 3, 1)), "float32")
    targets = np.zeros(1200, np.int64)
    targets[1100] = bad
    target, wrong = interpreter.array(targets, "int64"), interpreter.array([0], "int64")
    y, total = interpreter.empty((1200,), "float32"), interpreter.empty((1,), "float32")
    if each:
        launches = launch.forward_each(*map(view, (x, target, None, y, wrong)), IGNORED)
    else:
        launches = launch.forward(*map(view, (x, target, None, y, total, wrong)), IGNORED, True)
    interpreter.run(launches)
    assert wrong[0] == 1101


def test_samples_of_too_many_values_are_refused() -> None:
    x = contiguous_view(0, "float32", (1, 65536, 1024))
    with pytest.raises(NotImplementedError, match=r"\[nll_loss\] x: got shape"):
        launch.backward(x, x, None, None, x, IGNORED, False)
