"""PyTorch's operator database on ruda against the CPU: a sample, and all of it with --slow."""

from __future__ import annotations

import re
import warnings
import zlib

import pytest
import torch

from .support import tool

sweep = tool("operator_sweep")

# No kernel, on purpose: layouts that a dense device does not have.
UNLISTED = {"to_sparse", "sparse.mm.reduce"}
ALL_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
    torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


def faults(outcomes) -> list:
    return [
        outcome
        for outcome in outcomes
        if outcome.kind in ("different", "raised")
        or (outcome.kind == "unlisted" and outcome.operator not in UNLISTED)
    ]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("part", range(8))
def test_every_operator_in_float32(part: int) -> None:
    outcomes = []
    for info in sweep.operator_database():
        chosen = zlib.crc32(info.name.encode()) % 8 == part
        if chosen and torch.float32 in info.supported_dtypes("cpu"):
            outcomes += sweep.sweep_operator(info, torch.float32, samples=1)
    assert faults(outcomes) == []
    assert sum(outcome.kind == "ok" for outcome in outcomes) > 80


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.complex64])
def test_some_operators_in_other_dtypes(dtype: torch.dtype) -> None:
    outcomes = []
    for info in sweep.operator_database():
        if zlib.crc32(info.name.encode()) % 11 == 3 and dtype in info.supported_dtypes("cpu"):
            outcomes += sweep.sweep_operator(info, dtype, samples=2)
    assert faults(outcomes) == []
    assert sum(outcome.kind == "ok" for outcome in outcomes) > 40


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_operator_in_every_dtype(dtype: torch.dtype) -> None:
    assert faults(sweep.sweep([dtype], samples=8)) == []


def test_a_difference_is_reported() -> None:
    for ours, theirs, text in [
        (torch.ones(2, device="ruda"), torch.tensor([1.0, 1.1]), "not close"),
        (torch.ones(2, device="ruda"), torch.ones(3), "shape"),
        (torch.ones(2, device="ruda"), torch.ones(2, dtype=torch.float64), "dtype"),
        (torch.ones(2), torch.ones(2), "result on cpu"),
        ([], [torch.ones(2)], "0 tensors, wanted 1"),
        (3, 4, "3, wanted 4"),
    ]:
        with pytest.raises(AssertionError, match=text):
            sweep.check_equal(ours, theirs, values=True)


# Not errors on the CPU either.
NO_ERROR = {"clamp_max", "clamp_min", "__rmod__", "__rpow__", "__rsub__"}


def raised_by(info, sample) -> BaseException | None:
    # Not pytest.raises: it takes longer than the call, 700 times.
    try:
        info(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return error
    return None


def test_wrong_inputs_raise_what_they_raise_on_the_cpu() -> None:
    """All error inputs of the database: right type and text."""
    seen, faults = 0, []
    for info in sweep.operator_database():
        if info.error_inputs_func is None or info.name in NO_ERROR:
            continue
        for wanted in info.error_inputs_func(info, "ruda"):
            error = raised_by(info, wanted.sample_input)
            seen += 1
            if not isinstance(error, wanted.error_type):
                faults.append((info.name, f"{error!r}", wanted.error_type))
            elif not re.search(wanted.error_regex, str(error)):
                faults.append((info.name, str(error), wanted.error_regex))
    assert faults == []
    assert seen > 600
