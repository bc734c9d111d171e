"""strategy="autotune": the shared tuner chooses among the product's own strategies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import BlasError, _native, gemm
from ruda_blas.gemm import reference
from ruda_runtime import tune
from ruda_runtime.conformance import check

from .cases import CASES, DTYPES, Case, inputs
from .test_matmul import run, tensor

NAMES = {number: name for name, number in gemm.STRATEGIES.items()}


class Watched:
    """The native product; a timer in which each strategy costs what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs = dict.fromkeys(gemm.STRATEGIES, 100)
        self.strategies: list[str] = []
        self._product = _native.gemm_matmul
        monkeypatch.setattr(_native, "gemm_matmul", self._watch)

    def _watch(self, *arguments: Any) -> None:
        self.strategies.append(NAMES[arguments[-1]])
        self._product(*arguments)

    def measure(self, call: Callable[[], Any]) -> int:
        call()
        return self.costs[self.strategies[-1]]

    def tuner(self, folder: Path | None = None, mode: str = "explore") -> tune.Tuner:
        return tune.Tuner(mode=mode, timer=self, disk=folder is not None, folder=folder,
                          environment={})  # fmt: skip


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(monkeypatch)
    with tune.using(watched.tuner()):
        yield watched


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_conformance(case: Case, dtype: str, watched: Watched) -> None:
    """Whatever is chosen: the first call, which tunes, and the one that knows."""
    given = inputs(case, dtype)
    wanted = reference.addmm(
        given["a"], given["b"], given["bias"], given["out"], case.alpha, case.beta
    )
    for fastest in ("tiled", "library"):
        watched.costs[fastest] = 10 if fastest == "tiled" else 1
        with tune.using(watched.tuner()) as tuner:
            for _ in range(2):
                check(run(case, given, gemm.AUTOTUNE), wanted, dtype, name=case.name)
            assert watched.strategies[-1] == fastest
            assert tuner.statistics()["tuned"] == tuner.statistics()["memory"] == 1


def operands(m: int = 9, k: int = 20, n: int = 30) -> tuple[rr.Tensor, rr.Tensor]:
    generator = np.random.default_rng(0)
    left = generator.standard_normal((m, k)).astype(np.float32)
    right = generator.standard_normal((k, n)).astype(np.float32)
    return rr.Tensor.from_numpy(left), rr.Tensor.from_numpy(right)


def test_the_choice_is_kept_for_its_shape(watched: Watched, tmp_path: Path) -> None:
    a, b = operands()
    watched.costs["library"] = 50
    with tune.using(watched.tuner(tmp_path)):
        gemm.matmul(a, b, strategy="autotune")
        assert len(watched.strategies) == 3 + 2 * 2 * 9 + 1  # validation, pairs, the product
    watched.strategies.clear()
    watched.costs["tiled"] = 1
    with tune.using(watched.tuner(tmp_path)) as later:  # as in another process
        gemm.matmul(a, b, strategy="autotune")
        assert watched.strategies == ["library"] and later.statistics()["disk"] == 1
        gemm.matmul(a, tensor(b.numpy().T.copy().T), strategy="autotune")  # other strides
        assert watched.strategies[-1] == "tiled" and later.statistics()["tuned"] == 1
        gemm.matmul(a, b, strategy="autotune", out_dtype="bfloat16")
        gemm.addmm(a, b, bias=rr.empty((30,)), strategy="autotune")
        assert later.statistics()["tuned"] == 3


def test_the_modes(watched: Watched, tmp_path: Path) -> None:
    a, b = operands()
    watched.costs["library"] = 1
    for mode in ("cache_only", "disabled"):
        with tune.using(watched.tuner(tmp_path, mode)):
            gemm.matmul(a, b, strategy="autotune")
    assert watched.strategies == ["auto", "auto"]
    with tune.using(watched.tuner(tmp_path)):
        gemm.matmul(a, b, strategy="autotune")
    with tune.using(watched.tuner(tmp_path, "cache_only")):
        gemm.matmul(a, b, strategy="autotune")
    assert watched.strategies[-1] == "library"


def test_an_out_that_is_added_to_is_added_once(watched: Watched) -> None:
    a, b = operands()
    out = rr.Tensor.from_numpy(np.ones((9, 30), np.float32))
    watched.costs["tiled"] = 1
    gemm.addmm(a, b, out=out, beta=2.0, strategy="autotune")
    assert len(watched.strategies) > 20 and watched.strategies[-1] == "tiled"
    np.testing.assert_allclose(out.numpy(), a.numpy() @ b.numpy() + 2.0, rtol=1e-5, atol=1e-5)


def test_wrong_numbers_are_an_error(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands()
    product = _native.gemm_matmul

    def wrong(*arguments: Any) -> None:
        product(*arguments)
        if NAMES[arguments[-1]] == "tiled":
            arguments[3].numpy()[2, 3] += 1.0

    monkeypatch.setattr(_native, "gemm_matmul", wrong)
    with pytest.raises(tune.WrongNumbersError, match=r"\[gemm\.matmul/1\] candidate 'tiled' .*3\]"):
        gemm.matmul(a, b, strategy="autotune")
    with tune.using(watched.tuner(mode="disabled")):
        np.testing.assert_allclose(
            gemm.matmul(a, b, strategy="autotune").numpy(), a.numpy() @ b.numpy(), rtol=1e-4,
            atol=1e-5,
        )  # fmt: skip


def test_a_wrong_call_is_the_same_error_as_ever(watched: Watched) -> None:
    a, b = operands()
    for mode in tune.MODES:
        with tune.using(watched.tuner(mode=mode)), pytest.raises(BlasError, match="with one K"):
            gemm.matmul(a, a, strategy="autotune")
    with pytest.raises(BlasError, match=r"out: got shape \[2, 2\]"):
        gemm.matmul(a, b, rr.empty((2, 2)), strategy="autotune")


def test_the_page_on_tuning(tmp_path: Path) -> None:
    """Its first example, as it stands, in a process of its own."""
    page = Path(__file__).resolve().parents[4] / "docs" / "tuning.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)[0]
    environment = {**os.environ, "RUDA_CACHE_DIR": str(tmp_path), "RUDA_AUTOTUNE": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    choice, tunes = done.stdout.split()
    assert choice in gemm.STRATEGIES and tunes == "1", done.stderr
    assert len(list((tmp_path / "tuning").iterdir())) == 1


def test_queued_launches() -> None:
    """In asynchronous dispatch the work is waited for: the record's times are those of products."""
    code = """
import numpy as np
from ruda_runtime import Tensor, tune
from ruda_blas import gemm
a, b = np.ones((300, 400), np.float32), np.ones((400, 500), np.float32)
with tune.using(tune.Tuner(disk=False)) as tuner:
    for _ in range(3):
        c = gemm.matmul(Tensor.from_numpy(a), Tensor.from_numpy(b), strategy="autotune").numpy()
    (record,) = tuner.records()
print((c == 400).all(), sorted(record.measured), record.key["environment"]["asynchronous"])
"""
    environment = {**os.environ, "RUDA_ASYNC": "1", "RUDA_TARGET": "host", "RUDA_AUTOTUNE": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    assert done.stdout == "True ['library', 'tiled'] True\n", done.stderr


def test_with_the_real_timer() -> None:
    """End to end: whatever is fastest here, the product is right and the record is whole."""
    a, b = operands(64, 300, 200)
    with tune.using(tune.Tuner(disk=False, environment={})) as tuner:
        result = gemm.matmul(a, b, strategy="autotune")
        np.testing.assert_allclose(result.numpy(), a.numpy() @ b.numpy(), rtol=1e-4, atol=1e-4)
        (record,) = tuner.records()
        assert set(record.measured) == {"library", "tiled"} and record.left_out == {}
        assert all(found.speedup > 0 for found in record.measured.values())
        assert record.choice in gemm.STRATEGIES
