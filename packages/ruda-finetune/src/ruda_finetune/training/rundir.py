"""The output directory of a run: one run each, and no run written over another."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from .._files import replace_files
from ..errors import CheckpointError
from .checkpoint import LATEST, NEXT, PREVIOUS
from .state import differences, plain

RUN_FILE = "run.json"
PROGRESS_FILE = "progress.json"
LOCK_FILE = ".lock"
_TRACES = (RUN_FILE, LATEST, PREVIOUS, NEXT, PROGRESS_FILE)


_held: dict[Path, int] = {}  # directories that this process has locked, and how many times


@contextmanager
def locked_run_directory(directory: str | Path) -> Iterator[None]:
    """Keep every other process out of a run's directory; raises `CheckpointError` if one is in it.

    May be entered again in the same process. The lock is the operating system's and goes with the
    process, however that ends; on file systems without locks there is none.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        where = directory.resolve()
        file = (where / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"[output directory] cannot write in {directory}: {error.strerror or error}"
        ) from error
    with file:
        if where not in _held:
            _lock(file, directory)
        _held[where] = _held.get(where, 0) + 1
        try:
            yield
        finally:
            _held[where] -= 1
            if not _held[where]:
                del _held[where]


def _lock(file: TextIO, directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return
        file.seek(0)
        owner = file.read().strip() or "unknown"
        raise CheckpointError(
            f"[output directory] {directory} is in use by another process (pid {owner}): wait "
            "until it ends, or choose another directory"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


def claim_run_directory(
    directory: str | Path,
    base_id: str,
    run_config: Mapping[str, Any],
    resuming: bool = False,
) -> Path:
    """Make `directory` the home of this run and write `run.json` into it.

    A directory that holds a run is an error that names it, unless `resuming`; then the run's
    configuration and base must be this run's, and every field that differs is named. Files that
    belong to no run (data, notes) may stand there.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"[output directory] {directory} is a file")
    traces = [name for name in _TRACES if (directory / name).exists()]
    ours = {"base_id": base_id, "run_config": plain(run_config)}
    if traces:
        there = read_run(directory)
        if not resuming:
            raise CheckpointError(_occupied(directory, traces, there))
        if there is not None:
            found = differences(there.get("base_id"), base_id, "base_id")
            found += differences(there.get("run_config"), ours["run_config"])
            if found:
                raise CheckpointError(
                    f"[output directory] {directory} holds a run with other settings: "
                    + "; ".join(found)
                )
            return directory
    record = {"format": 1, "started": time.strftime("%Y-%m-%d %H:%M:%S"), **ours}
    try:
        replace_files(directory, {RUN_FILE: (json.dumps(record, indent=1) + "\n").encode()})
    except OSError as error:
        raise CheckpointError(
            f"[output directory] cannot write in {directory}: {error.strerror or error}"
        ) from error
    return directory


def read_run(directory: str | Path) -> dict[str, Any] | None:
    """What `run.json` says of the directory's run; None where there is none to read."""
    return _read_json(Path(directory) / RUN_FILE)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _occupied(directory: Path, traces: list[str], run: Mapping[str, Any] | None) -> str:
    progress = _read_json(directory / PROGRESS_FILE) or {}
    facts = []
    if run and run.get("started"):
        facts.append(f"started {run['started']}")
    if progress.get("step") is not None:
        facts.append(f"{progress['step']} of {progress.get('total_steps')} steps")
    facts.append(f"files: {', '.join(traces)}")
    return (
        f"[output directory] {directory} already holds a run ({'; '.join(facts)}): resume it, "
        "choose another directory, or remove it"
    )
