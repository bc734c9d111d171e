"""metrics.jsonl: one JSON object per optimiser step, appended and flushed as the run goes."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO


class MetricsWriter:
    """Append rows to `path`. On resume, rows past `keep_steps` (written after the checkpoint that
    is resumed) are dropped first, so that the file describes one uninterrupted run."""

    def __init__(self, path: Path, keep_steps: int = 0) -> None:
        self.path = path
        rows = (
            [row for row in read_metrics(path) if row["step"] <= keep_steps]
            if path.exists()
            else []
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")
        for row in rows:
            self._write(row)

    def write(self, **row: Any) -> None:
        """Append one row; it must have `step` (int, from 1)."""
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line cut short by a crash is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
