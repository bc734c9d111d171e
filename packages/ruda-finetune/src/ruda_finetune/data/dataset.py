"""`SFTDataset`: all records of a file encoded once, with a report and a fingerprint."""

from __future__ import annotations

import hashlib
import warnings
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from ..errors import DataError
from .collator import SFTCollator
from .encoding import EncodedRow
from .lengths import DataWarning, fit_rows
from .records import RecordFile, read_records


class SFTDataset(Sequence[EncodedRow]):
    """Encoded rows in file order, after the length limit.

    Args:
        records: a `RecordFile` (errors then name its lines) or any sequence of records.
        collator: encodes the records and holds the length limit.

    Attributes:
        report: `LengthReport` over all rows; `str(report)` is one sentence.
        fingerprint: SHA-256 over every row's tokens and labels; equal data encoded equally.
        lengths: tokens of each row.

    Rows that are too long are a `DataError` that counts them; with `collator.truncate` they are
    cut, and a `DataWarning` says how many tokens are lost.
    """

    def __init__(
        self, records: RecordFile | Sequence[Mapping[str, Any]], collator: SFTCollator
    ) -> None:
        if not len(records):
            raise DataError("[SFTDataset] no records")
        self._records = records
        rows = [collator.encode(record, self._place(index)) for index, record in enumerate(records)]
        self._indices, self._rows, self.report = fit_rows(
            rows, self._place, collator.max_length, collator.truncate, collator.describe
        )
        if self.report.losses:
            warnings.warn(self.report.losses, DataWarning, stacklevel=2)
        self.lengths: list[int] = [len(row) for row in self._rows]
        self.collator = collator
        self.fingerprint = _fingerprint(self._rows)

    @classmethod
    def from_file(cls, path: str | Path, collator: SFTCollator) -> SFTDataset:
        """The data set of a JSON or JSONL file."""
        return cls(read_records(path), collator)

    def _place(self, index: int) -> str:
        if isinstance(self._records, RecordFile):
            return self._records.where(index)
        return f"record {index + 1}"

    def where(self, index: int) -> str:
        """The place in the source of row `index`."""
        return self._place(self._indices[index])

    def record(self, index: int) -> Mapping[str, Any]:
        """The record that row `index` was made of."""
        return self._records[self._indices[index]]

    def preview(self, index: int = 0) -> str:
        """Row `index` decoded, with masked and kept parts."""
        return self.collator.describe(self._rows[index])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> EncodedRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[EncodedRow]: ...
    def __getitem__(self, index: int | slice) -> EncodedRow | list[EncodedRow]:
        return self._rows[index]


def _fingerprint(rows: Sequence[EncodedRow]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(array("i", [len(row), *row.input_ids, *row.labels]).tobytes())
    return digest.hexdigest()
