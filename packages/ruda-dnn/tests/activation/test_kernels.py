"""The activation kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_dnn.activation import launch, reference
from ruda_runtime.conformance import rounded

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, Case

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_gradients(interpreter, case: Case, dtype: str) -> None:
    rng = np.random.default_rng(11)
    gate = rounded(case.gate(rng), dtype)
    up, grad = (rounded(rng.standard_normal(gate.shape), dtype) for _ in range(2))
    given = [interpreter.view(interpreter.array(value, dtype)) for value in (gate, up, grad)]
    out, dgate, dup, one, other = (interpreter.empty(gate.shape, dtype) for _ in range(5))
    view = interpreter.view
    interpreter.run(
        launch.silu_mul_forward(*given[:2], view(out))
        + launch.silu_mul_backward(*given, view(dgate), view(dup))
        + launch.silu_mul_backward(*given, view(one), None)
        + launch.silu_mul_backward(*given, None, view(other))
        + launch.silu_mul_backward(*given, None, None)
    )
    check(out, reference.silu_mul(gate, up, lambda silu: rounded(silu, dtype)), dtype)
    wanted = reference.silu_mul_backward(gate, up, grad, lambda silu: rounded(silu, dtype))
    check(dgate, wanted[0], dtype)
    check(dup, wanted[1], dtype)
    assert one.tobytes() == dgate.tobytes() and other.tobytes() == dup.tobytes()


def test_silu_is_rounded_before_the_product(interpreter) -> None:
    """Where rounding once at the end gives another bfloat16 than rounding twice."""
    gate = rounded(np.linspace(-4, 4, 2000), "bfloat16")
    up = rounded(np.linspace(0.5, 3.5, 2000), "bfloat16")
    twice = rounded(rounded(gate / (1 + np.exp(-gate)), "bfloat16") * up, "bfloat16")
    out = interpreter.empty(gate.shape, "bfloat16")
    views = [interpreter.view(interpreter.array(value, "bfloat16")) for value in (gate, up)]
    interpreter.run(launch.silu_mul_forward(*views, interpreter.view(out)))
    np.testing.assert_array_equal(out.astype(np.float64), twice)
