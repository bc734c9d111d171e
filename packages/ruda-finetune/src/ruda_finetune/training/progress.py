"""`progress.json`: where a run stands and how long it will take, for other programs to read."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .rundir import PROGRESS_FILE


def seconds_left(step_seconds: Sequence[float], steps_left: int) -> float | None:
    """Time for the steps that remain, from the median of the last steps; None before the first."""
    if steps_left <= 0:
        return 0.0
    if not step_seconds:
        return None
    # The first step of a process also pays for allocations: it counts only while it is alone.
    recent = list(step_seconds)[1:][-20:] or list(step_seconds)
    return statistics.median(recent) * steps_left


def write_progress_file(path: str | Path, progress: dict[str, Any]) -> Path:
    """Write `progress` as JSON, whole or not at all; a directory gets `progress.json`.

    The file is a convenience and is not flushed to disk: a power cut may lose it, a reader never
    sees half of it.
    """
    path = Path(path)
    if path.is_dir():
        path = path / PROGRESS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(
        json.dumps({**progress, "updated": time.strftime("%Y-%m-%d %H:%M:%S")}, indent=1) + "\n"
    )
    temporary.replace(path)
    return path
