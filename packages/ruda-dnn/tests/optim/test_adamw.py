"""AdamW against float64: float32 parameters and float32 masters of 16-bit ones."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn.optim import reference
from ruda_runtime import Tensor

from ..support import DTYPES, bits_of, check, rounded, same_for_any_thread_count, to_tensor
from .cases import CASES, Case


@pytest.mark.parametrize("gradient_dtype", ["the_parameter's", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_steps(case: Case, dtype: str, gradient_dtype: str) -> None:
    rng = np.random.default_rng(13)
    gradient_dtype = dtype if gradient_dtype == "the_parameter's" else gradient_dtype
    masters = [rounded(rng.standard_normal(shape), "float32") for shape in case.shapes]
    parameters = [to_tensor(master, dtype) for master in masters]
    half = dtype != "float32"
    stored = [to_tensor(master, "float32") if half else None for master in masters]
    firsts = [np.zeros(shape) for shape in case.shapes]
    seconds = [np.zeros(shape) for shape in case.shapes]
    moments = [[to_tensor(zero, "float32") for zero in firsts] for _ in range(2)]
    for step in range(1, case.steps + 1):
        gradients = [
            rounded(rng.standard_normal(shape) / case.gradient_scale, gradient_dtype)
            for shape in case.shapes
        ]
        options = {
            "step": step,
            "learning_rate": case.learning_rate,
            "betas": case.betas,
            "epsilon": case.epsilon,
            "weight_decay": case.weight_decay,
            "gradient_scale": case.gradient_scale,
        }
        ruda_dnn.adamw_step(
            parameters,
            [to_tensor(gradient, gradient_dtype) for gradient in gradients],
            stored,
            *moments,
            **options,
        )
        for i, gradient in enumerate(gradients):
            masters[i], firsts[i], seconds[i] = reference.adamw_step(
                masters[i], gradient, firsts[i], seconds[i], **options
            )
    for i, master in enumerate(masters):
        check(moments[0][i], firsts[i], "float32")
        check(moments[1][i], seconds[i], "float32")
        if half:
            check(stored[i], master, "float32")
            np.testing.assert_array_equal(  # the parameter is its master, rounded once
                parameters[i].numpy(), stored[i].numpy().astype(parameters[i].dtype)
            )
        else:
            check(parameters[i], master, "float32")


def test_masters_keep_what_bfloat16_would_lose() -> None:
    """Steps of 1e-4 on a parameter of 1: bfloat16 alone would never move."""
    parameter, master = to_tensor(np.ones(8), "bfloat16"), to_tensor(np.ones(8), "float32")
    moments = [to_tensor(np.zeros(8), "float32") for _ in range(2)]
    for step in range(1, 101):
        ruda_dnn.adamw_step(
            [parameter],
            [to_tensor(np.ones(8), "bfloat16")],
            [master],
            [moments[0]],
            [moments[1]],
            step=step,
            learning_rate=1e-4,
            weight_decay=0.0,
        )
    np.testing.assert_allclose(master.numpy(), 0.99, rtol=1e-5)
    assert float(parameter.numpy()[0]) < 1.0


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(3)
    start, gradient = rng.standard_normal((2, 70_000))

    def run() -> list[Tensor]:
        parameter, grad = to_tensor(start, "float32"), to_tensor(gradient, "float32")
        moments = [to_tensor(np.zeros(70_000), "float32") for _ in range(2)]
        ruda_dnn.adamw_step([parameter], [grad], [None], [moments[0]], [moments[1]], step=1)
        return [parameter, *moments]

    same_for_any_thread_count(run)


def make(dtype: str = "float32", shape: tuple[int, ...] = (4,)) -> Tensor:
    return to_tensor(np.ones(shape), dtype)


def test_errors_leave_everything_as_it_was() -> None:
    parameters = [make(), make("bfloat16")]
    first = [make(), make()]
    second = [make(), make()]
    before = [bits_of(tensor) for tensor in (*parameters, *first, *second)]
    good = {"step": 1}

    def call(gradients=None, masters=None, **options) -> None:
        ruda_dnn.adamw_step(
            parameters,
            gradients or [make(), make("bfloat16")],
            masters or [None, make()],
            first,
            second,
            **{**good, **options},
        )

    error = ruda_dnn.OptimizerError
    with pytest.raises(error, match=r"masters\[1\]: got nothing, wanted float32\[4\]"):
        call(masters=[None, None])
    with pytest.raises(TypeError, match=r"masters\[1\]: got dtype bfloat16, wanted float32"):
        call(masters=[None, make("bfloat16")])
    with pytest.raises(error, match=r"gradients\[1\]: got shape \[5\], wanted the parameter's"):
        call(gradients=[make(), make("bfloat16", (5,))])
    with pytest.raises(TypeError, match=r"gradients\[1\]: got dtype float16"):
        call(gradients=[make(), make("float16")])
    with pytest.raises(error, match="got 2 parameters, 1 gradients"):
        call(gradients=[make()])
    for options, text in [
        ({"step": 0}, "step: got 0"),
        ({"betas": (1.0, 0.9)}, "betas: got"),
        ({"betas": (0.9, -0.1)}, "betas: got"),
        ({"learning_rate": -1.0}, "learning_rate: got -1"),
        ({"learning_rate": float("nan")}, "learning_rate: got"),
        ({"epsilon": -1e-8}, "epsilon: got"),
        ({"weight_decay": -0.1}, "weight_decay: got"),
        ({"gradient_scale": float("inf")}, "gradient_scale: got inf"),
    ]:
        with pytest.raises(error, match=text):
            call(**options)
    assert before == [bits_of(tensor) for tensor in (*parameters, *first, *second)]
