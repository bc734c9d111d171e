from __future__ import annotations

import itertools

import pytest
import torch

from ruda_finetune import DataError, TrainingBatches, evaluation_batches
from ruda_finetune.data import epoch_order


def collate(rows):
    return {"rows": torch.tensor(rows)}


def windows(batches, count):
    return [
        [batch["rows"].tolist() for batch in window] for window in itertools.islice(batches, count)
    ]


def test_order_is_fixed_forever():
    # Written down once: resuming after an upgrade must find the same order.
    assert epoch_order(10, seed=0, epoch=0) == [0, 4, 2, 3, 8, 7, 6, 9, 5, 1]
    assert epoch_order(10, seed=1, epoch=2) == [1, 4, 2, 7, 3, 5, 8, 6, 0, 9]


def test_each_epoch_is_another_permutation():
    orders = [tuple(epoch_order(50, seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 10)]
    assert len(set(orders)) == 6
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_windows_and_short_tail():
    batches = TrainingBatches(range(10), collate, batch_size=1, accumulation=4, shuffle=False)
    assert batches.steps_per_epoch == 3
    assert windows(batches, 3) == [
        [[0], [1], [2], [3]],
        [[4], [5], [6], [7]],
        [[8], [9]],
    ]
    assert batches.state_dict() == {"epoch": 1, "window": 0} and batches.position == 1.0
    two = TrainingBatches(range(10), collate, batch_size=2, accumulation=2, shuffle=False)
    assert windows(two, 3) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]


def test_every_row_once_an_epoch_whatever_the_split():
    for size, accumulation in ((4, 1), (2, 2), (1, 4), (3, 2)):
        batches = TrainingBatches(range(11), collate, size, accumulation, seed=3)
        seen = windows(batches, batches.steps_per_epoch)
        rows = [row for window in seen for batch in window for row in batch]
        assert sorted(rows) == list(range(11))
        flat = [sorted(row for batch in window for row in batch) for window in seen]
        order = epoch_order(11, 3, 0)
        step = size * accumulation
        assert flat == [sorted(order[i : i + step]) for i in range(0, 11, step)]


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 7])
def test_cursor_continues_exactly(stop):
    def fresh():
        return TrainingBatches(range(10), collate, 2, 2, seed=5)

    expected = windows(fresh(), 9)
    first = fresh()
    assert windows(first, stop) == expected[:stop]
    second = fresh()
    second.load_state_dict(first.state_dict())
    assert windows(second, 9 - stop) == expected[stop:]


def test_rows_of_a_window_are_grouped_by_length():
    class Rows(list):
        pass

    rows = Rows(range(6))
    rows.lengths = [9, 1, 8, 2, 7, 3]
    grouped = TrainingBatches(rows, collate, 2, 2, shuffle=False)
    assert windows(grouped, 2) == [[[1, 3], [2, 0]], [[5, 4]]]
    plain = TrainingBatches(rows, collate, 2, 2, shuffle=False, group_by_length=False)
    assert windows(plain, 2) == [[[0, 1], [2, 3]], [[4, 5]]]


def test_rows_are_fetched_when_their_window_is_asked_for():
    fetched = []

    class Rows(list):
        def __getitem__(self, index):
            fetched.append(index)
            return super().__getitem__(index)

    batches = TrainingBatches(Rows(range(6)), collate, 2, shuffle=False)
    assert fetched == []
    batches.next_window()
    assert fetched == [0, 1]


def test_bad_arguments():
    with pytest.raises(DataError, match="batch_size must be at least 1, got 0"):
        TrainingBatches([1], collate, 0)
    with pytest.raises(DataError, match="accumulation must be at least 1"):
        TrainingBatches([1], collate, 1, 0)
    with pytest.raises(DataError, match="empty"):
        TrainingBatches([], collate, 1)
    with pytest.raises(DataError, match=r"no window 5 in epoch 0.*has 3 windows"):
        TrainingBatches(range(6), collate, 2).load_state_dict({"epoch": 0, "window": 5})


def test_evaluation_batches_cover_the_data_in_order():
    parts = [batch["rows"].tolist() for batch in evaluation_batches(range(5), collate, 2)]
    assert parts == [[0, 1], [2, 3], [4]]
