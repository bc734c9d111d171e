"""Validation: wrong numbers and failures are errors, never a slow candidate or another path."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ruda_runtime as rr
from ruda_runtime import UnsupportedError, tune
from ruda_runtime.tune.validate import difference, outputs_of, size_of

from .bench import Bench, only_record


def array(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def test_wrong_numbers_are_an_error_that_names_kernel_and_candidate() -> None:
    bench = Bench(plain=100, fast=1)
    bench.results["plain"] = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
    bench.results["fast"] = np.array([[0.0, 1.0], [2.5, 3.0]], np.float32)
    tuner = bench.tuner()
    for _ in range(2):  # nothing is recorded: it stays an error
        with pytest.raises(tune.WrongNumbersError) as caught:
            bench.choose(tuner, kernel="gemm.matmul/1")
        text = str(caught.value)
        assert text.startswith(
            "[gemm.matmul/1] candidate 'fast' gives other numbers than the reference 'plain': "
            "output 0 at [1, 0]: got 2.5, wanted 2.0 within "
        )
        assert "1 of 4 elements; the largest error is 0.5" in text
        assert "RUDA_AUTOTUNE=disabled computes with 'plain'" in text
    assert tuner.records() == [] and "fast" not in bench.timed
    assert isinstance(caught.value, tune.TuningError) and isinstance(caught.value, RuntimeError)


def test_without_validation_the_numbers_are_not_looked_at() -> None:
    bench = Bench(plain=100, fast=50)
    bench.results["fast"] = array(9.0)
    assert bench.choose(bench.tuner(validate=False)) == "fast"
    assert bench.runs == bench.timed


@pytest.mark.parametrize(
    ("given", "wanted", "right"),
    [
        ([1.00109], [1.0], True),
        ([1.00111], [1.0], False),
        ([0.00009], [0.0], True),
        ([0.00011], [0.0], False),
        ([-1.0], [1.0], False),
        ([np.nan], [np.nan], True),
        ([np.nan], [1.0], False),
        ([1.0], [np.nan], False),
        ([np.inf], [np.inf], True),
        ([-np.inf], [np.inf], False),
        ([1e30], [np.inf], False),
        ([np.inf], [1e30], False),
        ([], [], True),
    ],
)
def test_the_tolerance(given: list[float], wanted: list[float], right: bool) -> None:
    found = difference([array(*given)], [array(*wanted)], tune.Policy())
    assert (found is None) == right, found


def test_the_tolerance_is_the_policys() -> None:
    strict = tune.Policy(absolute_tolerance=0.0, relative_tolerance=1e-6)
    assert difference([array(1.0001)], [array(1.0)], strict) is not None
    assert difference([array(1.0)], [array(1.0)], strict) is None
    loose = tune.Policy(relative_tolerance=0.5)
    assert difference([array(1.4)], [array(1.0)], loose) is None


def test_the_absolute_part_follows_the_size_of_the_output() -> None:
    """Rounding of a sum grows with what is summed, also where the result happens to be small."""
    wanted = np.full(1000, 1e4, np.float32)
    wanted[7] = 0.0
    for error, right in ((0.9, True), (1.1, False)):
        given = wanted.copy()
        given[7] = error
        assert (difference([given], [wanted], tune.Policy()) is None) == right


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_may_differ_by_one_rounding(dtype: Any) -> None:
    one = array(1.0, dtype=dtype)
    ulp = float(ml_dtypes.finfo(dtype).eps)
    assert difference([array(1.0 + ulp, dtype=dtype)], [one], tune.Policy()) is None
    assert difference([array(1.0 + 2 * ulp, dtype=dtype)], [one], tune.Policy()) is not None


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_integers_must_be_equal(dtype: Any) -> None:
    given, wanted = np.array([1, 1], dtype), np.array([1, 0], dtype)
    assert difference([wanted], [wanted.copy()], tune.Policy()) is None
    found = difference([given], [wanted], tune.Policy())
    assert found is not None and found.startswith("output 0 at [1]")


def test_outputs_are_matched_one_by_one() -> None:
    one, two = array(1.0), array(2.0, 3.0)
    assert difference([one, two], [one, two], tune.Policy()) is None
    assert "got 1 outputs, wanted 2" in str(difference([one], [one, two], tune.Policy()))
    found = difference([one, two.astype(np.float64)], [one, two], tune.Policy())
    assert found == "output 1: got float64[2], wanted float32[2]"
    assert "wanted float32[1]" in str(difference([two], [one], tune.Policy()))
    found = difference([one, array(2.0, 4.0)], [one, two], tune.Policy())
    assert found is not None and found.startswith("output 1 at [1]: got 4.0, wanted 3.0")


def test_errors_beyond_the_first_chunk_are_found() -> None:
    wanted = np.zeros(3 * (1 << 20) + 5, np.float32)
    given = wanted.copy()
    given[-1] = 1.0
    found = difference([given], [wanted], tune.Policy())
    assert found is not None and f"at [{wanted.size - 1}]" in found and "1 of" in found


def test_what_outputs_may_be() -> None:
    tensor = rr.Tensor.from_numpy(np.ones((2, 3), np.float32))
    other = array(1.0)
    assert outputs_of(tensor) == [tensor]
    assert outputs_of({"b": tensor, "a": [other, None]}) == [other, tensor]
    assert size_of(outputs_of((tensor, (tensor, other)))) == 24 + 24 + 4
    with pytest.raises(TypeError, match="got a result of type float, wanted tensors"):
        outputs_of(1.0)


def test_a_shared_output_buffer_does_not_hide_wrong_numbers() -> None:
    buffer = rr.empty(4)

    def fill(value: float) -> Any:
        def run() -> rr.Tensor:
            buffer.numpy()[:] = value
            return buffer

        return run

    bench = Bench(plain=100, fast=50)
    bench.results = {"plain": fill(1.0), "fast": fill(2.0)}
    with pytest.raises(tune.WrongNumbersError, match=r"got 2\.0, wanted 1\.0"):
        bench.choose(bench.tuner())


def test_more_outputs_than_may_be_read_back_keep_the_reference() -> None:
    bench = Bench(plain=100, fast=50, other=10)
    bench.results["fast"] = RuntimeError("must not run")
    bench.results["plain"] = np.zeros(101, np.uint8)
    tuner = bench.tuner(readback_limit=100)
    assert bench.choose(tuner) == bench.choose(tuner) == "plain"
    assert only_record(tuner).left_out == {"fast": "readback_limit", "other": "readback_limit"}
    assert bench.runs == ["plain"]
    bench = Bench(plain=100, fast=50)
    bench.results = dict.fromkeys(("plain", "fast"), np.zeros(100, np.uint8))
    assert bench.choose(bench.tuner(readback_limit=100)) == "fast"


@pytest.mark.parametrize("validate", [True, False])
def test_a_failing_candidate_is_an_error_and_nothing_takes_its_place(validate: bool) -> None:
    bench = Bench(plain=100, broken=1, fast=50)
    failure = bench.results["broken"] = MemoryError("no memory left")
    tuner = bench.tuner(validate=validate)
    with pytest.raises(tune.TuningError) as caught:
        bench.choose(tuner)
    assert caught.value.__cause__ is failure
    assert str(caught.value).startswith(
        "[test.kernel/1] candidate 'broken' failed while it was tried: MemoryError: no memory left."
    )
    assert tuner.records() == [] and "fast" not in bench.runs
    # The next tune can begin: the error gave the turn back.
    del bench.results["broken"]
    assert bench.choose(tuner) == "broken"


def test_a_candidate_that_says_it_cannot_is_left_out() -> None:
    bench = Bench(plain=100, wide=1, fast=50)
    bench.results["wide"] = UnsupportedError("[wide] needs a multiple of 16")
    tuner = bench.tuner()
    assert bench.choose(tuner) == "fast"
    assert only_record(tuner).left_out == {"wide": "unsupported"}


def test_the_references_error_passes_unchanged() -> None:
    bench = Bench(plain=100, fast=50)
    bench.results["plain"] = rr.RudaValueError("[kernel] wrong shape")
    with pytest.raises(rr.RudaValueError, match="wrong shape") as caught:
        bench.choose(bench.tuner())
    assert not isinstance(caught.value, tune.TuningError)
    assert "fast" not in bench.runs


def test_a_failing_choice_is_not_computed_again_on_another_path() -> None:
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner()
    assert bench.choose(tuner) == "fast"
    bench.results["fast"] = RuntimeError("device lost")
    bench.runs.clear()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device lost"):
            tuner.execute("test.kernel/1", {"size": 1}, "plain", ["fast"], bench.run)
    assert bench.runs == ["fast", "fast"]
