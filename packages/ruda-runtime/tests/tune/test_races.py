"""Threads and processes that meet: one tune at a time, and everybody gets an answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruda_runtime import tune
from ruda_runtime.tune import controller

from .bench import Bench

THREADS = 8


class Held(Bench):
    """Its first timed run waits until the test lets it go on."""

    def __init__(self, **costs: int) -> None:
        super().__init__(**costs)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def measure(self, run: Callable[[], Any]) -> int:
        self.begun.set()
        assert self.go_on.wait(60)
        return super().measure(run)


def test_others_use_the_reference_while_one_tunes() -> None:
    bench = Held(plain=100, fast=50)
    tuner = bench.tuner()
    quick = Bench(plain=100, fast=50)
    with ThreadPoolExecutor(THREADS) as pool:
        first = pool.submit(bench.choose, tuner)
        assert bench.begun.wait(60)
        runs = len(bench.runs)
        same = [pool.submit(bench.choose, tuner) for _ in range(THREADS - 1)]
        assert [job.result(60) for job in same] == ["plain"] * (THREADS - 1)
        # Another operation, another tuner: still one tune at a time in the process.
        assert quick.choose(quick.tuner()) == "plain" and quick.runs == []
        assert len(bench.runs) == runs
        bench.go_on.set()
        assert first.result(60) == "fast"
        later = [pool.submit(bench.choose, tuner) for _ in range(THREADS)]
        assert [job.result(60) for job in later] == ["fast"] * THREADS
    assert quick.choose(quick.tuner()) == "fast"
    assert tuner.statistics() == {
        "memory": THREADS, "disk": 0, "tuned": 1, "busy": THREADS - 1, "reference": 0,
    }  # fmt: skip
    assert Counter(bench.timed) == {"plain": 9, "fast": 9}


def test_a_key_that_was_tuned_meanwhile_is_not_tuned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread finishes it between this one's look at the records and its turn."""
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner()
    others: list[str] = []

    def late(key: Any) -> None:
        if not others:
            others.append("begun")
            with ThreadPoolExecutor(1) as pool:
                others.append(pool.submit(bench.choose, tuner).result(60))

    monkeypatch.setattr(tuner._disk, "load", late)
    assert bench.choose(tuner) == "fast" and others == ["begun", "fast"]
    assert Counter(bench.timed) == {"plain": 9, "fast": 9}
    assert tuner.statistics()["tuned"] == 1


def test_many_threads_and_keys(tmp_path: Path) -> None:
    """Every answer is the reference or the choice, every key is tuned at most once."""
    keys, rounds = 12, 60
    tuners = [Bench(plain=100, fast=50).tuner(tmp_path) for _ in range(2)]
    runs: Counter[tuple[int, str]] = Counter()
    active, lock = [0], threading.Lock()
    ready = threading.Barrier(THREADS)

    class Timer:
        def measure(self, run: Callable[[], Any]) -> int:
            with lock:
                active[0] += 1
                assert active[0] == 1  # nobody else is measuring
            run()
            with lock:
                active[0] -= 1
            return 100 if last.name == "plain" else 50

    last = threading.local()
    for tuner in tuners:
        tuner._timer = Timer()

    def work(number: int) -> list[str]:
        ready.wait(60)
        found = []
        for step in range(rounds):
            key = (step * 5 + number) % keys

            def run(name: str, key: int = key) -> np.ndarray:
                last.name = name
                with lock:
                    runs[key, name] += 1
                return np.zeros(2)

            found.append(tuners[number % 2].choose("k/1", {"n": key}, "plain", ["fast"], run))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [answer for found in pool.map(work, range(THREADS)) for answer in found]
    assert set(answers) <= {"plain", "fast"} and len(answers) == THREADS * rounds
    for tuner in tuners:
        for key in range(keys):
            assert tuner.choose("k/1", {"n": key}, "plain", ["fast"], lambda name: None) == "fast"
    assert len(list(tmp_path.iterdir())) == keys
    # One run for validation and nine timed ones, by whichever of the two tuners was first.
    assert all(count in (10, 20) for count in runs.values()), runs


def test_a_candidate_that_calls_a_tuned_operation_does_not_wait_for_itself() -> None:
    outer, inner = Bench(plain=100, fast=50), Bench(plain=100, fast=50)
    tuner = outer.tuner()
    nested: list[str] = []

    def result() -> np.ndarray:
        nested.append(inner.choose(tuner, kernel="inner/1"))
        return np.zeros(1)

    outer.results = {"plain": result, "fast": result}
    assert outer.choose(tuner) == "fast"
    assert set(nested) == {"plain"} and inner.runs == []


def test_a_child_of_a_fork_can_tune() -> None:
    """The parent's tune is going on in a thread that the child does not have."""
    bench = Held(plain=100, fast=50)
    thread = threading.Thread(target=bench.choose, args=(bench.tuner(),))
    thread.start()
    assert bench.begun.wait(60)
    child = os.fork()
    if child == 0:
        own = Bench(plain=100, fast=50)
        os._exit(0 if own.choose(own.tuner()) == "fast" else 1)
    _, status = os.waitpid(child, 0)
    bench.go_on.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not controller._tuning.locked()


def test_a_fork_inside_a_tune() -> None:
    """The child goes on with its copy of the tune, and both can tune afterwards."""
    bench = Bench(plain=100, fast=50)
    children: list[int] = []

    def fork() -> np.ndarray:
        if not children:
            children.append(os.fork())
        return np.zeros(1)

    bench.results = {"plain": fork, "fast": fork}
    tuner = bench.tuner()
    right = False
    try:
        right = bench.choose(tuner) == "fast" and bench.choose(tuner, key=2) == "fast"
    finally:
        if children == [0]:
            os._exit(0 if right else 1)
    _, status = os.waitpid(children[0], 0)
    assert right and os.waitstatus_to_exitcode(status) == 0


_RACE = """
import sys
from pathlib import Path
from ruda_runtime import tune
import numpy as np
class Fixed:
    def measure(self, call):
        call()
        return 100 if seen[-1] == "plain" else 50
seen = []
def run(name):
    seen.append(name)
    return np.zeros(2)
for round in range(20):
    tuner = tune.Tuner(timer=Fixed(), folder=Path(sys.argv[1]), environment={})
    for key in range(6):
        assert tuner.choose("k/1", {"n": key}, "plain", ["fast"], run) == "fast"
print("ok")
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    jobs = [
        subprocess.Popen([sys.executable, "-c", _RACE, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [job.communicate(timeout=120)[0] for job in jobs] == [b"ok\n"] * 3
    assert len(list(tmp_path.iterdir())) == 6


def test_using_replaces_the_tuner_for_all_threads() -> None:
    before = tune.tuner()
    mine = tune.Tuner(mode="disabled", disk=False)
    with ThreadPoolExecutor(1) as pool, tune.using(mine):
        assert tune.tuner() is pool.submit(tune.tuner).result(60) is mine
    assert tune.tuner() is before
