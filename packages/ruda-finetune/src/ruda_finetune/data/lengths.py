"""The length limit: refusing or cutting rows that are too long, and the account of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import DataError
from .encoding import EncodedRow


class DataWarning(UserWarning):
    """Training data that is used, but not as it was given: rows cut short or left out."""


@dataclass(frozen=True)
class LengthReport:
    """How long the rows are, and what the length limit took away."""

    rows: int  # rows that stay
    min_tokens: int
    median_tokens: float
    max_tokens: int
    total_tokens: int
    supervised_tokens: int
    truncated_rows: int = 0  # rows that stay, cut to the limit
    dropped_rows: int = 0  # rows with no label before the limit
    lost_tokens: int = 0  # cut from the rows that stay, and the dropped rows whole
    lost_supervised_tokens: int = 0

    def __str__(self) -> str:
        share = 100 * self.supervised_tokens / self.total_tokens
        text = (
            f"{self.rows} rows, {self.min_tokens}/{self.median_tokens:g}/{self.max_tokens} tokens "
            f"(min/median/max), {self.supervised_tokens} of {self.total_tokens} tokens are labels "
            f"({share:.0f} %)"
        )
        return f"{text}; {self.losses}" if self.losses else text

    @property
    def losses(self) -> str:
        """What the length limit took away, in words; empty when nothing was."""
        if not self.lost_tokens:
            return ""
        text = (
            f"{self.truncated_rows} rows cut to max_length, {self.dropped_rows} rows dropped "
            f"because no label is left in them: {self.lost_tokens} tokens lost"
        )
        return f"{text}, {self.lost_supervised_tokens} of them labels"


def fit_rows(
    rows: Sequence[EncodedRow],
    where: Callable[[int], str],
    max_length: int | None,
    truncate: bool,
    describe: Callable[[EncodedRow], str],
) -> tuple[list[int], list[EncodedRow], LengthReport]:
    """Apply the length limit: (indices of the rows that stay, those rows, the report).

    Raises `DataError` when a row has no label at all, when rows are too long and may not be cut,
    and when cutting leaves no row with a label.
    """
    for index, row in enumerate(rows):
        if not row.supervised_tokens:
            raise DataError(
                f"{where(index)}: no token of this row is a label (the first token cannot be "
                f"one). The row as it would be learned:\n{describe(row)}"
            )
    limit = max((len(row) for row in rows), default=0) if max_length is None else max_length
    long = [index for index, row in enumerate(rows) if len(row) > limit]
    if long and not truncate:
        longest = max(long, key=lambda index: len(rows[index]))
        raise DataError(
            f"{len(long)} of {len(rows)} rows are longer than max_length {limit}; the longest, "
            f"{where(longest)}, has {len(rows[longest])} tokens. Raise max_length (--max-length) "
            "or allow cutting with truncate=True (--truncate)"
        )
    indices, kept = [], []
    lost = lost_labels = truncated = 0
    for index, row in enumerate(rows):
        short = row.cut(limit)
        stays = short.supervised_tokens > 0
        if stays:
            indices.append(index)
            kept.append(short)
            truncated += len(short) < len(row)
        lost += len(row) - len(short) * stays
        lost_labels += row.supervised_tokens - short.supervised_tokens
    if not kept:
        raise DataError(
            f"none of the {len(rows)} rows has a label within max_length {limit}: the answers "
            f"start later; the longest row has {max(map(len, rows))} tokens. Raise max_length "
            "(--max-length)"
        )
    lengths = [len(row) for row in kept]
    report = LengthReport(
        rows=len(kept),
        min_tokens=min(lengths),
        median_tokens=statistics.median(lengths),
        max_tokens=max(lengths),
        total_tokens=sum(lengths),
        supervised_tokens=sum(row.supervised_tokens for row in kept),
        truncated_rows=truncated,
        dropped_rows=len(rows) - len(kept),
        lost_tokens=lost,
        lost_supervised_tokens=lost_labels,
    )
    return indices, kept, report
