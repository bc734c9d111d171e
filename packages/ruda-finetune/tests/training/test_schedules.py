from __future__ import annotations

import math

import pytest
import torch

from ruda_finetune import CheckpointError, FinetuneError, LRSchedule


def optimizer():
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]
    return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.5}], 1.0)


def rates(kind, total, **options):
    schedule = LRSchedule(optimizer(), kind, total, **options)
    seen = []
    for _ in range(total + 1):
        assert [group["lr"] for group in schedule.optimizer.param_groups] == schedule.get_last_lr()
        assert schedule.get_last_lr()[1] == pytest.approx(schedule.get_last_lr()[0] / 2)
        seen.append(schedule.get_last_lr()[0])
        schedule.step()
    return seen


def test_values_by_hand():
    assert rates("constant", 4, warmup_steps=2) == [0.5, 1, 1, 1, 1]
    assert rates("linear", 4) == [1, 0.75, 0.5, 0.25, 0]
    assert rates("linear", 6, warmup_steps=2, min_ratio=0.2) == pytest.approx(
        [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2]
    )
    cosine = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(5)]
    assert rates("cosine", 4) == pytest.approx(cosine)
    assert rates("cosine", 5, warmup_steps=1) == pytest.approx([1, *cosine])
    assert rates("linear", 2, warmup_steps=2)[:2] == [0.5, 1]


def test_past_the_end_the_rate_stays():
    schedule = LRSchedule(optimizer(), "cosine", 2, min_ratio=0.1)
    for _ in range(5):
        schedule.step()
    assert schedule.get_last_lr()[0] == pytest.approx(0.1)


def test_state_round_trip_and_other_settings():
    schedule = LRSchedule(optimizer(), "cosine", 10, 2)
    for _ in range(4):
        schedule.step()
    state = schedule.state_dict()
    other = LRSchedule(optimizer(), "cosine", 10, 2)
    other.load_state_dict(state)
    assert other.get_last_lr() == schedule.get_last_lr()
    assert other.optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0]
    for kind, total, warmup, words in [
        ("linear", 10, 2, "kind differs: checkpoint 'cosine', this run 'linear'"),
        ("cosine", 12, 2, "total_steps differs: checkpoint 10, this run 12"),
        ("cosine", 10, 3, "warmup_steps differs"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            LRSchedule(optimizer(), kind, total, warmup).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("step", 10), "no schedule 'step': choose one of constant, linear, cosine"),
        (("linear", 0), "at least one step"),
        (("linear", 5, 6), "warmup_steps <= total_steps"),
        (("linear", 5, 0, 1.5), "min_ratio must lie in 0..1"),
    ],
)
def test_bad_settings(arguments, words):
    with pytest.raises(FinetuneError, match=words):
        LRSchedule(optimizer(), *arguments)
