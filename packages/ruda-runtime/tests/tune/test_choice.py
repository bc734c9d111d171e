"""Measuring and choosing: warm-ups, alternation, medians, spread, budget, number of candidates."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_runtime import RudaValueError, tune
from ruda_runtime.tune.measure import Measurement

from .bench import Bench, only_record


def test_warmups_and_alternating_pairs() -> None:
    bench = Bench(plain=100, fast=50)
    assert bench.choose(bench.tuner()) == "fast"
    assert bench.runs[:2] == ["plain", "fast"]  # what validation compares
    assert bench.timed == ["plain", "fast"] * (2 + 7)
    assert len(bench.runs) == 2 + len(bench.timed)
    other = Bench(plain=100, fast=50)
    other.choose(other.tuner(warmups=0, samples=3))
    assert other.timed == ["plain", "fast"] * 3


def test_warmups_do_not_count() -> None:
    bench = Bench(plain=100, fast=[10_000, 10_000, *[50] * 7])
    tuner = bench.tuner()
    assert bench.choose(tuner) == "fast"
    assert only_record(tuner).measured["fast"] == Measurement(2.0, 0.0)


def test_the_median_of_paired_ratios_decides() -> None:
    # The ratio of the medians would be 100 / 50; the machine slows down in the middle of the run.
    plain = [100, 100, 100, 1000, 1000, 1000, 1000]
    steady = [97, 97, 97, 970, 970, 970, 970]
    bench = Bench(plain=plain, steady=steady)
    tuner = bench.tuner(warmups=0)
    assert bench.choose(tuner) == "plain"
    measured = only_record(tuner).measured["steady"]
    assert measured.speedup == pytest.approx(100 / 97) and measured.relative_mad < 1e-9
    # Two outliers of seven do not move a median.
    bench = Bench(plain=100, fast=[50, 5000, 50, 50, 5000, 50, 50])
    tuner = bench.tuner(warmups=0)
    assert bench.choose(tuner) == "fast"
    assert only_record(tuner).measured["fast"] == Measurement(2.0, 0.0)


@pytest.mark.parametrize(
    ("cost", "chosen"), [(1050, "plain"), (1000, "other"), (1001, "plain"), (999, "other")]
)
def test_the_minimum_speedup(cost: int, chosen: str) -> None:
    bench = Bench(plain=1050, other=cost)  # 1050 / 1000 is exactly the bound
    assert bench.choose(bench.tuner()) == chosen


@pytest.mark.parametrize(("spread", "chosen"), [(0.149, "other"), (0.151, "plain")])
def test_the_spread_of_the_ratios(spread: float, chosen: str) -> None:
    # Ratios 2, 2(1 - s), 2(1 + s) in turn: the median is 2, the deviations' median is 2s.
    low, high = round(1e9 / (2 * (1 - spread))), round(1e9 / (2 * (1 + spread)))
    bench = Bench(plain=10**9, other=[round(5e8), low, high, low, high, low, high])
    tuner = bench.tuner(warmups=0, budget_seconds=1e6)
    assert bench.choose(tuner) == chosen
    measured = only_record(tuner).measured["other"]
    assert measured.speedup == pytest.approx(2.0)
    assert measured.relative_mad == pytest.approx(spread, rel=1e-3)


def test_the_fastest_acceptable_candidate_wins_and_the_first_of_equals() -> None:
    wild = [10, 20, 40, 10, 80, 15, 5]
    bench = Bench(plain=100, slow=200, good=50, wild=wild, best=40, equal=40)
    tuner = bench.tuner(warmups=0)
    assert bench.choose(tuner) == "best"
    assert set(only_record(tuner).measured) == {"slow", "good", "wild", "best", "equal"}


def test_a_clock_that_stood_still() -> None:
    assert Measurement.of([(0, 0)] * 3) == Measurement(1.0, 0.0)
    assert Measurement.of([(100, 0)] * 3).speedup == 100.0


def test_the_budget_is_soft() -> None:
    """A pair that was begun is finished; nothing new begins after the budget."""
    second = 1_000_000_000
    bench = Bench(plain=second, quick=second // 2, later=second // 4, last=second // 8)
    # 2 warm-ups and 7 pairs of 1.5 s are 13.5 s; of the second candidate's 1.25 s, 6 pairs fit.
    tuner = bench.tuner(budget_seconds=20.0)
    assert bench.choose(tuner) == "quick"
    record = only_record(tuner)
    assert record.left_out == {"later": "budget", "last": "budget"}
    assert set(record.measured) == {"quick"}
    assert 20.0 <= bench.clock < 20.0 + 1.25
    assert "last" not in bench.runs
    # Nothing fits: the reference stays.
    bench = Bench(plain=100, quick=50)
    assert bench.choose(bench.tuner(budget_seconds=0.0)) == "plain"
    assert bench.timed == []


def test_at_most_so_many_candidates() -> None:
    names = {f"c{number}": 100 - number for number in range(40)}
    bench = Bench(plain=1000, **names)
    tuner = bench.tuner()
    assert bench.choose(tuner) == "c31"
    record = only_record(tuner)
    assert list(record.measured) == [f"c{number}" for number in range(32)]
    assert record.left_out == {f"c{number}": "max_candidates" for number in range(32, 40)}


def test_names_must_differ() -> None:
    bench = Bench(plain=1, fast=1)
    for names in (["fast", "fast"], ["plain"]):
        with pytest.raises(RudaValueError, match="wanted different names"):
            bench.choose(bench.tuner(), candidates=names)


def test_without_candidates_the_reference() -> None:
    bench = Bench(plain=100)
    assert bench.choose(bench.tuner()) == "plain"


def test_execute_runs_the_choice_once_more_and_gives_its_result() -> None:
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner()
    trials: list[str] = []

    def trial(name: str) -> np.ndarray:
        trials.append(name)
        return bench.run(name)

    calls: list[str] = []

    def run(name: str) -> str:
        calls.append(name)
        return f"result of {name}"

    for _ in range(2):
        assert tuner.execute("k/1", {}, "plain", ["fast"], run, trial) == "result of fast"
    assert calls == ["fast", "fast"] and len(trials) == 2 + 2 * 9
    assert tuner.statistics() == {"memory": 1, "disk": 0, "tuned": 1, "busy": 0, "reference": 0}


def test_what_is_in_the_key_is_chosen_for_itself() -> None:
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner()
    assert bench.choose(tuner, key=(2, 3)) == "fast"
    bench.costs = {"plain": 100, "fast": 200}
    assert bench.choose(tuner, key=(2, 3)) == "fast"
    assert bench.choose(tuner, key=(3, 2)) == "plain"
    assert bench.choose(tuner, key=(2, 3), kernel="test.kernel/2") == "plain"


def test_the_timers_measure_real_runs() -> None:
    for timer in (tune.HostTimer(), tune.EventTimer()):
        short = min(timer.measure(lambda: None) for _ in range(3))
        long = timer.measure(lambda: sum(range(300_000)))
        assert 0 <= short < long
    assert set(tune.TIMERS) == {"host", "cuda"}
