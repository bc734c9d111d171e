"""A workbench without time: a clock that only runs cost, and candidates with stated costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruda_runtime import tune

SECOND = 1_000_000_000
DAY = 24 * 3600.0


class Bench:
    """Candidates whose runs take the nanoseconds that a test says.

    ``costs[name]`` is one number, or a list of them that is gone through again and again by the
    timed runs. ``results[name]`` is what a run gives, or an exception that it raises.
    """

    def __init__(self, **costs: int | Sequence[int]) -> None:
        self.costs = costs
        self.results: dict[str, Any] = {}
        self.clock = 0.0
        self.now = 1_000_000.0
        self.runs: list[str] = []
        self.timed: list[str] = []
        self._timing = False
        self._count: dict[str, int] = {}

    def run(self, name: str) -> Any:
        self.runs.append(name)
        if self._timing:
            self.timed.append(name)
        result = self.results.get(name, np.arange(4.0, dtype=np.float32))
        if isinstance(result, Exception):
            raise result
        return result() if callable(result) else result

    def measure(self, run: Callable[[], Any]) -> int:
        self._timing = True
        try:
            run()
        finally:
            self._timing = False
        name = self.timed[-1]
        cost = self.costs[name]
        if not isinstance(cost, int):
            number = self._count[name] = self._count.get(name, -1) + 1
            cost = cost[number % len(cost)]
        self.clock += cost / SECOND
        return cost

    def tuner(self, folder: Path | None = None, mode: str = "explore", **policy: Any) -> tune.Tuner:
        return tune.Tuner(
            tune.Policy(**policy), mode, timer=self, disk=folder is not None, folder=folder,
            clock=lambda: self.clock, now=lambda: self.now, environment={},
        )  # fmt: skip

    def choose(
        self, tuner: tune.Tuner, key: Any = 1, kernel: str = "test.kernel/1",
        candidates: Iterable[str] | None = None,
    ) -> str:  # fmt: skip
        names = [name for name in self.costs if name != "plain"]
        wanted = names if candidates is None else list(candidates)
        return tuner.choose(kernel, {"size": key}, "plain", wanted, self.run)


def only_record(tuner: tune.Tuner) -> tune.Record:
    (record,) = tuner.records()
    return record
