"""The policy's defaults and bounds, and the mode."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from ruda_runtime import RudaValueError, settings, tune
from ruda_runtime.tune.policy import mode_from_environment


def test_the_defaults() -> None:
    assert asdict(tune.Policy()) == {
        "timing": "end_to_end",
        "validate": True,
        "absolute_tolerance": 1e-4,
        "relative_tolerance": 1e-3,
        "readback_limit": 67_108_864,
        "warmups": 2,
        "samples": 7,
        "max_candidates": 32,
        "budget_seconds": 30.0,
        "minimum_speedup": 1.05,
        "maximum_relative_mad": 0.15,
        "max_records": 1024,
        "max_age_seconds": 604_800.0,
    }


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("timing", ["kernel", "", None], "'end_to_end'"),
        ("validate", [1, None, "yes"], "True or False"),
        ("samples", [2, 8], "an odd number"),
        ("samples", [0, -1, 7.0, True, "7"], "a whole number of at least 1"),
        ("warmups", [-1, 1.5], "a whole number of at least 0"),
        ("max_candidates", [0], "a whole number of at least 1"),
        ("max_records", [0], "a whole number of at least 1"),
        ("readback_limit", [-1], "a whole number of at least 0"),
        ("absolute_tolerance", [-1e-9, float("nan"), float("inf"), "0"], "a finite number"),
        ("relative_tolerance", [-1.0], "a finite number of at least 0"),
        ("maximum_relative_mad", [-0.1], "a finite number of at least 0"),
        ("minimum_speedup", [0.99, float("inf")], "a finite number of at least 1"),
        ("budget_seconds", [-1.0, float("inf")], "a finite number of at least 0"),
        ("max_age_seconds", [float("nan")], "a finite number of at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, values: list[Any], wanted: str) -> None:
    for value in values:
        with pytest.raises(RudaValueError) as caught:
            tune.Policy(**{name: value})
        assert str(caught.value).startswith(f"[Policy] {name}: got {value!r}, wanted {wanted}")


def test_the_mode() -> None:
    assert mode_from_environment({}) == mode_from_environment({"RUDA_AUTOTUNE": ""}) == "explore"
    for mode in tune.MODES:
        assert mode_from_environment({"RUDA_AUTOTUNE": mode}) == mode
        assert tune.Tuner(mode=mode, disk=False).mode == mode
    with pytest.raises(RudaValueError, match="wanted one of: explore, cache_only, disabled"):
        mode_from_environment({"RUDA_AUTOTUNE": "on"})
    with pytest.raises(RudaValueError, match=r"\[mode\] got 'Explore', wanted one of: explore"):
        tune.Tuner(mode="Explore", disk=False)
    setting = settings.find("RUDA_AUTOTUNE")
    assert setting is not None and setting.choices == tune.MODES


def test_the_process_reads_its_mode_once(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = """
import os
from ruda_runtime import tune
first = tune.tuner()
os.environ["RUDA_AUTOTUNE"] = "nonsense"
print(tune.tuner() is first, first.mode)
"""
    done = python(code, RUDA_AUTOTUNE="cache_only", RUDA_TARGET="host")
    assert done.stdout == "True cache_only\n", done.stderr
    done = python("from ruda_runtime import tune; tune.tuner()", RUDA_AUTOTUNE="yes")
    assert done.returncode == 1
    assert (
        "RudaValueError: [RUDA_AUTOTUNE] got 'yes', wanted one of: explore, cache_only, disabled"
        in done.stderr
    )


def test_importing_it_is_light(python_output: Callable[..., str]) -> None:
    code = """
import sys
from ruda_runtime import tune
tune.tuner()
print([name for name in ("numpy", "ml_dtypes", "triton", "torch", "cuda") if name in sys.modules])
"""
    assert python_output(code) == "[]"
