"""The optimiser kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ruda_dnn.optim import launch, reference
from ruda_runtime import conformance
from ruda_runtime.conformance import rounded
from ruda_runtime.launch import View, contiguous_view, specialisations

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, Case

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

SHAPES = [(3, 7), (40_000,), (0,), (), (16_384,)]


def uploader(interpreter) -> Any:
    return lambda table: interpreter.view(interpreter.array(np.array(table), "int64"))


def views(interpreter, arrays: list) -> list:
    return [interpreter.view(array) for array in arrays]


@pytest.mark.parametrize("gradient_dtype", ["the_parameter's", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_steps(interpreter, case: Case, dtype: str, gradient_dtype: str) -> None:
    rng = np.random.default_rng(13)
    gradient_dtype = dtype if gradient_dtype == "the_parameter's" else gradient_dtype
    masters = [rounded(rng.standard_normal(shape), "float32") for shape in case.shapes]
    half = dtype != "float32"
    parameters = [interpreter.array(master, dtype) for master in masters]
    stored = [interpreter.array(master, "float32") if half else None for master in masters]
    firsts = [np.zeros(shape) for shape in case.shapes]
    seconds = [np.zeros(shape) for shape in case.shapes]
    one, two = ([interpreter.array(zero, "float32") for zero in firsts] for _ in range(2))
    for step in range(1, min(case.steps, 4) + 1):
        gradients = [
            rounded(rng.standard_normal(shape) / case.gradient_scale, gradient_dtype)
            for shape in case.shapes
        ]
        options = {
            "step": step,
            "learning_rate": case.learning_rate,
            "epsilon": case.epsilon,
            "weight_decay": case.weight_decay,
            "gradient_scale": case.gradient_scale,
        }
        given = [interpreter.array(gradient, gradient_dtype) for gradient in gradients]
        memory = [views(interpreter, arrays) for arrays in (parameters, given, stored, one, two)]
        interpreter.run(
            launch.adamw_step(*memory, beta1=case.betas[0], beta2=case.betas[1],
                              upload=uploader(interpreter), **options)
        )  # fmt: skip
        for i, gradient in enumerate(gradients):
            masters[i], firsts[i], seconds[i] = reference.adamw_step(
                masters[i], gradient, firsts[i], seconds[i], betas=case.betas, **options
            )
    for i, master in enumerate(masters):
        check(one[i], firsts[i], "float32")
        check(two[i], seconds[i], "float32")
        check(stored[i] if half else parameters[i], master, "float32")
        if half:  # the parameter is its master, rounded once
            kind = conformance.numpy_dtype(dtype)
            np.testing.assert_array_equal(parameters[i], stored[i].astype(kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1 / 3, 0.0])
def test_unscale_and_norm(interpreter, dtype: str, scale: float) -> None:
    rng = np.random.default_rng(1)
    values = [rounded(rng.standard_normal(shape), dtype) for shape in SHAPES]
    gradients = [interpreter.array(value, dtype) for value in values]
    before = [gradient.tobytes() for gradient in gradients]
    finite, norm = interpreter.empty((1,), "int32"), interpreter.empty((1,), "float64")
    given, upload = views(interpreter, gradients), uploader(interpreter)
    interpreter.run(
        launch.gradient_norm(
            given, scale, interpreter.view(norm), interpreter.view(finite), upload,
            interpreter.scratch,
        )
    )  # fmt: skip
    wanted = reference.gradient_norm(values, float(np.float32(scale)))
    np.testing.assert_allclose(norm[0], wanted, rtol=1e-6)
    assert finite[0] == 1
    assert before == [gradient.tobytes() for gradient in gradients]
    finite[0] = -1
    interpreter.run(
        launch.unscale(given, scale, interpreter.view(finite), upload, interpreter.scratch)
    )
    assert finite[0] == 1
    for value, gradient in zip(values, gradients):
        check(gradient, value * float(np.float32(scale)), dtype)
    if scale == 1.0:
        assert before == [gradient.tobytes() for gradient in gradients]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 16_384, 39_999])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_one_bad_value_is_found(interpreter, dtype: str, bad: float, place: int, scale) -> None:
    values = np.ones(40_000)
    values[place] = bad
    gradients = [np.ones(9), values]
    given = [interpreter.view(interpreter.array(value, dtype)) for value in gradients]
    norm = interpreter.view(interpreter.empty((1,), "float64"))
    flags = [interpreter.empty((1,), "int32") for _ in range(2)]
    upload, scratch = uploader(interpreter), interpreter.scratch
    interpreter.run(
        launch.gradient_norm(given, scale, norm, interpreter.view(flags[0]), upload, scratch)
        + launch.unscale(given, scale, interpreter.view(flags[1]), upload, scratch)
    )
    assert flags[0][0] == 0 and flags[1][0] == 0


def test_overflow_by_the_scale_is_found(interpreter) -> None:
    upload, scratch = uploader(interpreter), interpreter.scratch
    flags = [interpreter.empty((1,), "int32") for _ in range(3)]
    norm = interpreter.view(interpreter.empty((1,), "float64"))
    large = [interpreter.view(interpreter.array(np.full(3, 1e30), "float32"))]
    half = [interpreter.view(interpreter.array(np.full(3, 6e4), "float16"))]
    interpreter.run(
        launch.gradient_norm(large, 1e10, norm, interpreter.view(flags[0]), upload, scratch)
        + launch.gradient_norm(large, 1.0, norm, interpreter.view(flags[1]), upload, scratch)
        + launch.unscale(half, 2.0, interpreter.view(flags[2]), upload, scratch)
    )
    assert [flag[0] for flag in flags] == [0, 1, 0]


def test_no_tensors(interpreter) -> None:
    finite, norm = interpreter.empty((1,), "int32"), interpreter.empty((1,), "float64")
    interpreter.run(
        launch.gradient_norm([], 1.0, interpreter.view(norm), interpreter.view(finite),
                             uploader(interpreter), interpreter.scratch)
    )  # fmt: skip
    assert (norm[0], finite[0]) == (0.0, 1)


def test_the_bundle_has_gradients_of_several_dtypes() -> None:
    """Of one launch each; where their chunks' results begin depends on those before."""

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    def upload(table: Sequence[int]) -> View:
        return scratch((len(table),), "int64")

    kept = set(map(repr, launch.bundle()))  # 1 is not True
    one, norm = scratch((1,), "int32"), scratch((1,), "float64")
    for order in itertools.permutations(DTYPES):
        for pointers in itertools.product((0, 8), repeat=3):
            gradients = [contiguous_view(pointer, dtype, (40_000,))
                         for pointer, dtype in zip(pointers, order)]  # fmt: skip
            launches = launch.gradient_norm(gradients, 1.0, norm, one, upload, scratch)
            for scale in (1.0, 0.5):
                launches += launch.unscale(gradients, scale, one, upload, scratch)
            assert {repr(each) for each in specialisations(launches)} <= kept
