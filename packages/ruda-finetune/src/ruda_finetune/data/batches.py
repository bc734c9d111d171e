"""Which rows make which optimiser step: shuffled epochs, windows of microbatches, a cursor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import DataError

Batch = dict[str, torch.Tensor]


def epoch_order(length: int, seed: int, epoch: int) -> list[int]:
    """A permutation of range(length) that depends on nothing but the arguments.

    Rows are sorted by a hash of (seed, epoch, row), so that the order survives new versions of
    Python, NumPy and torch: a run can be resumed after an upgrade.
    """
    prefix = f"{seed}/{epoch}/".encode()
    keys = [
        (hashlib.blake2b(prefix + b"%d" % row, digest_size=8).digest(), row)
        for row in range(length)
    ]
    return [row for _, row in sorted(keys)]


class TrainingBatches:
    """Windows of microbatches, one window an optimiser step, from a shuffled data set.

    Args:
        dataset: rows by index. Rows are fetched when their window is asked for, never earlier, so
            a data set that draws random numbers is resumed exactly too.
        collator: makes a batch (a dict of tensors) of a list of rows.
        batch_size: rows of a microbatch.
        accumulation: microbatches of a window. The last window of an epoch may be shorter.
        seed, shuffle: the order of epoch e is `epoch_order(len(dataset), seed, e)`, or file order.
        group_by_length: sort the rows of a window by length before they are split into
            microbatches: less padding, the same rows in the same step. Needs `dataset.lengths`;
            without it rows keep their order.

    `state_dict()` is the cursor: the epoch and the window that comes next.
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        collator: Callable[[list[Any]], Batch],
        batch_size: int,
        accumulation: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        group_by_length: bool = True,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("accumulation", accumulation)):
            if value < 1:
                raise DataError(f"[TrainingBatches] {name} must be at least 1, got {value}")
        if not len(dataset):
            raise DataError("[TrainingBatches] the data set is empty")
        self.dataset = dataset
        self.collator = collator
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.seed = seed
        self.shuffle = shuffle
        self.group_by_length = group_by_length
        self.epoch = 0
        self.window = 0  # of the current epoch, the one that comes next
        self._order: tuple[int, list[int]] | None = None  # (epoch, its order)

    @property
    def rows_per_step(self) -> int:
        return self.batch_size * self.accumulation

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.dataset) // self.rows_per_step)

    @property
    def position(self) -> float:
        """Epochs done, as a fraction."""
        return self.epoch + self.window / self.steps_per_epoch

    def window_rows(self, epoch: int, window: int) -> list[list[int]]:
        """Row numbers of one window, a list for each microbatch."""
        if self._order is None or self._order[0] != epoch:
            length = len(self.dataset)
            order = epoch_order(length, self.seed, epoch) if self.shuffle else list(range(length))
            self._order = (epoch, order)
        start = window * self.rows_per_step
        rows = self._order[1][start : start + self.rows_per_step]
        lengths = getattr(self.dataset, "lengths", None)
        if self.group_by_length and lengths is not None:
            rows = sorted(rows, key=lambda row: lengths[row])
        return [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]

    def next_window(self) -> list[Batch]:
        """The microbatches of the next step; the cursor moves on."""
        rows = self.window_rows(self.epoch, self.window)
        batches = [self.collator([self.dataset[row] for row in part]) for part in rows]
        self.window += 1
        if self.window == self.steps_per_epoch:
            self.epoch, self.window = self.epoch + 1, 0
        return batches

    def __iter__(self) -> Iterator[list[Batch]]:
        """Windows without end, from the cursor on."""
        while True:
            yield self.next_window()

    def identity(self) -> dict[str, Any]:
        """What must be equal for a cursor to mean the same rows; compared on resume."""
        return {
            "fingerprint": getattr(self.dataset, "fingerprint", None),
            "rows": len(self.dataset),
            "batch_size": self.batch_size,
            "accumulation": self.accumulation,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "group_by_length": self.group_by_length,
        }

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "window": self.window}

    def check_state_dict(self, state: Mapping[str, int]) -> None:
        """Raise `DataError` when the cursor points at no window of this data."""
        epoch, window = state["epoch"], state["window"]
        if epoch < 0 or not 0 <= window < self.steps_per_epoch:
            raise DataError(
                f"[TrainingBatches] no window {window} in epoch {epoch}: an epoch of this data "
                f"has {self.steps_per_epoch} windows"
            )

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.check_state_dict(state)
        self.epoch, self.window = state["epoch"], state["window"]


def evaluation_batches(
    dataset: Sequence[Any], collator: Callable[[list[Any]], Batch], batch_size: int
) -> Iterator[Batch]:
    """The whole data set once, in its own order."""
    if batch_size < 1:
        raise DataError(f"[evaluation_batches] batch_size must be at least 1, got {batch_size}")
    for start in range(0, len(dataset), batch_size):
        stop = min(start + batch_size, len(dataset))
        yield collator([dataset[index] for index in range(start, stop)])
