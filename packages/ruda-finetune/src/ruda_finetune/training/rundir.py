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

from .._files import check_writable, replace_files
from ..errors import CheckpointError
from .checkpoint import LATEST, NEXT, PREVIOUS
from .state import differences, plain

RUN_FILE = "run.json"
PROGRESS_FILE = "progress.json"
LOCK_FILE = ".lock"
_CHECKPOINTS = (LATEST, PREVIOUS, NEXT)
_TRACES = (RUN_FILE, *_CHECKPOINTS, PROGRESS_FILE)


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
        raise CheckpointError(_unwritable(directory, error)) from error
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


def check_run_directory(directory: str | Path, resuming: bool = False) -> dict[str, Any] | None:
    """Whether a run may start in `directory`, or, `resuming`, go on there; nothing is written.

    The run's record (`run.json`); None for a new run, and for one whose record is lost or damaged
    while a checkpoint is there, which says the same. Raises `CheckpointError` for a new run where
    there is one, for resuming where there is none, and for a directory that cannot be written.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise CheckpointError(f"[output directory] {directory} is a file, wanted a directory")
    traces = [name for name in _TRACES if (directory / name).exists()]
    run = read_run(directory) if traces else None
    saved = [name for name in _CHECKPOINTS if name in traces]
    if resuming and not traces:
        raise CheckpointError(
            f"[output directory] {directory} holds no run: start one (leave --resume out)"
        )
    if resuming and run is None and not saved:
        raise CheckpointError(
            f"[output directory] {directory} holds a run that cannot go on: {_record(traces)}, and "
            "there is no checkpoint; choose another directory, or remove this one"
        )
    if traces and not resuming:
        raise CheckpointError(_occupied(directory, traces, run, bool(run or saved)))
    try:
        check_writable(directory)
    except OSError as error:
        raise CheckpointError(_unwritable(directory, error)) from error
    return run


def claim_run_directory(
    directory: str | Path,
    base_id: str,
    run_config: Mapping[str, Any],
    resuming: bool = False,
) -> Path:
    """Make `directory` the home of this run and write `run.json` into it.

    What `check_run_directory` refuses is refused here. When `resuming`, the run's configuration and
    base must be this run's, and every field that differs is named. Files that belong to no run
    (data, notes) may stand there.
    """
    directory = Path(directory)
    # a checkpoint that was resumed from may stand alone, under a name of its own
    resuming = resuming and any((directory / name).exists() for name in _TRACES)
    there = check_run_directory(directory, resuming)
    ours = {"base_id": base_id, "run_config": plain(run_config)}
    if there is not None:
        check_same_run(directory, there, base_id, run_config)
        return directory
    record = {"format": 1, "started": time.strftime("%Y-%m-%d %H:%M:%S"), **ours}
    try:
        replace_files(directory, {RUN_FILE: (json.dumps(record, indent=1) + "\n").encode()})
    except OSError as error:
        raise CheckpointError(_unwritable(directory, error)) from error
    return directory


def check_same_run(
    directory: Path, record: Mapping[str, Any], base_id: str, run_config: Mapping[str, Any]
) -> None:
    """Raise `CheckpointError` that names every field in which a `run.json` is another run's."""
    found = differences(record.get("base_id"), base_id, "base_id")
    found += differences(record.get("run_config"), plain(run_config))
    if found:
        raise CheckpointError(
            f"[output directory] {directory} holds a run with other settings: " + "; ".join(found)
        )


def read_run(directory: str | Path) -> dict[str, Any] | None:
    """What `run.json` says of the directory's run; None where there is none to read."""
    return _read_json(Path(directory) / RUN_FILE)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _record(traces: list[str]) -> str:
    return f"{RUN_FILE} is {'damaged' if RUN_FILE in traces else 'missing'}"


def _unwritable(directory: Path, error: OSError) -> str:
    return f"[output directory] cannot write in {directory}: {error.strerror or error}"


def _occupied(
    directory: Path, traces: list[str], run: Mapping[str, Any] | None, can_go_on: bool
) -> str:
    progress = _read_json(directory / PROGRESS_FILE) or {}
    facts = []
    if run and run.get("started"):
        facts.append(f"started {run['started']}")
    if run is None:
        facts.append(_record(traces))
    if progress.get("step") is not None:
        facts.append(f"{progress['step']} of {progress.get('total_steps')} steps")
    facts.append(f"files: {', '.join(traces)}")
    advice = (
        "resume it (--resume), or choose another directory"
        if can_go_on
        else "it cannot go on without a checkpoint; choose another directory, or remove this one"
    )
    return f"[output directory] {directory} already holds a run ({'; '.join(facts)}): {advice}"
