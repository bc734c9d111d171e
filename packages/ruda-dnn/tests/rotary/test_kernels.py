"""The rotary kernel, interpreted, against float64; and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_dnn.rotary import launch, reference
from ruda_runtime.conformance import rounded

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, Case

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

RUNS = [
    pytest.param(case, dtype, table, id=f"{case.name}-{dtype}-{table}")
    for case in CASES
    for dtype in DTYPES
    for table in dict.fromkeys((dtype, "float32"))
]


@pytest.mark.parametrize("layout", ["rows", "heads_first", "wide"])
@pytest.mark.parametrize(("case", "dtype", "table"), RUNS)
def test_both_maps(interpreter, case: Case, dtype: str, table: str, layout: str) -> None:
    rng = np.random.default_rng(3)
    x = rounded(case.x(rng), dtype)
    cos, sin = (rounded(values, table) for values in case.tables(rng))
    given = interpreter.array(x, dtype)
    if layout == "heads_first":
        given = interpreter.array(x.transpose(0, 2, 1, 3), dtype).transpose(0, 2, 1, 3)
    elif layout == "wide":  # a part of a projection's result
        given = interpreter.array(np.concatenate([x, x + 1], axis=2), dtype)[:, :, : x.shape[2]]
    tables = [interpreter.view(interpreter.array(values, table)) for values in (cos, sin)]
    for transposed, right in ((False, reference.rotary), (True, reference.rotary_backward)):
        y = interpreter.empty(x.shape, dtype)
        views = (interpreter.view(given), *tables, interpreter.view(y))
        interpreter.run(launch.rotary(*views, transposed))
        check(y, right(x, cos, sin), dtype)
