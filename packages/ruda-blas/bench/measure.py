"""Paired timing, and rows for bench/ledger.csv."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

Run = Callable[[], Any]


def paired(ours: Run, peer: Run | None, rounds: int) -> tuple[float, float, float]:
    """Medians in milliseconds of alternating calls, and the median of the paired ratios."""
    ours()
    if peer is not None:
        peer()
    left, right = [], []
    for _ in range(rounds):
        left.append(milliseconds(ours))
        if peer is not None:
            right.append(milliseconds(peer))
    ratios = [a / b for a, b in zip(left, right)]
    return (
        statistics.median(left),
        statistics.median(right) if right else 0.0,
        statistics.median(ratios) if ratios else 0.0,
    )


def milliseconds(run: Run) -> float:
    """One call after 50 ms of the same: the other side's threads, which spin for a while after
    their work, have gone to sleep by then, and this side's are awake. A call of half a second or
    more needs no such company."""
    begin = time.perf_counter()
    for first in count():
        start = time.perf_counter()
        run()
        end = time.perf_counter()
        if (first == 0 and end - start > 0.5) or start - begin > 0.05:
            return (end - start) * 1e3
    raise AssertionError


def limits() -> tuple[float, float]:
    """Floating-point operations, and bytes read and written, in a millisecond at best: NumPy's
    2048^3 float32 product, and a large copy."""
    side = 2048
    a = np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)
    out = np.empty_like(a)
    big = np.zeros(1 << 26, np.float32)
    target = np.empty_like(big)
    flops = 2 * side**3 / min(milliseconds(lambda: np.matmul(a, a, out=out)) for _ in range(7))
    copy = min(milliseconds(lambda: np.copyto(target, big)) for _ in range(7))
    return flops, 2 * big.nbytes / copy


class Rows:
    """Measured rows; each is printed when it is added."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rounds: int = arguments.rounds
        self.json: bool = arguments.json
        self.ledger: ModuleType | None = load_ledger() if arguments.ledger else None
        self.rows: list[dict[str, object]] = []

    def add(
        self,
        operation: str,
        shape: str,
        dtype: str,
        ours: Run,
        peer: Run | None = None,
        peer_name: str = "",
        limit: tuple[str, float] = ("", 0.0),
    ) -> float:
        """`limit`: its name and the milliseconds that it allows at best. Returns our median."""
        mine, other, ratio = paired(ours, peer, self.rounds)
        share = limit[1] / mine
        row = {"operation": operation, "shape": shape, "dtype": dtype, "ours": mine, "peer": other,
               "unit": "ms", "peer_name": peer_name, "ratio": ratio, "limit": limit[0],
               "share": share}  # fmt: skip
        self.rows.append(row)
        if self.ledger is not None:
            self.ledger.append(
                operation, shape, dtype, mine, other, "ms", peer_name,
                self.ledger.versions("ruda-blas", "numpy", "bitsandbytes", "torch"),
                ratio, limit[0], share,
            )  # fmt: skip
        elif not self.json:
            versus = f"{peer_name} {other:9.4f} ms, ratio {ratio:6.3f}" if peer else ""
            reached = f", {share:4.0%} of {limit[0]}" if limit[0] else ""
            print(f"{operation:20} {shape:24} {dtype:9} {mine:9.4f} ms  {versus}{reached}")
        return mine

    def finish(self) -> None:
        if self.json:
            print(json.dumps(self.rows))


def load_ledger() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "bench" / "ledger.py"
    spec = importlib.util.spec_from_file_location("ledger", path)
    if spec is None or spec.loader is None or not path.exists():
        raise SystemExit(f"--ledger needs a checkout of the repository: {path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parser(description: str | None) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    result.add_argument("--rounds", type=int, default=7, help="calls of each side, at least 7")
    result.add_argument("--json", action="store_true", help="print the rows as one JSON list")
    result.add_argument("--ledger", action="store_true", help="append the rows to the ledger")
    return result
