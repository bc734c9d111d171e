"""Where cached files live and how they are written. Imports nothing of the runtime.

    $RUDA_CACHE_DIR, else $XDG_CACHE_HOME/ruda, else ~/.cache/ruda

What cannot be read is a miss, what cannot be written one warning: a cache stops no run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = [
    "TEMPORARY",
    "CacheWarning",
    "cache_directory",
    "remove_stale",
    "warn_once",
    "write_atomically",
]

TEMPORARY = ".tmp"
"""The ending of a file that is being written, or was left by a process that was killed."""

STALE_SECONDS = 24 * 3600.0
"""No living process writes a temporary file for that long; a model's weights may take minutes."""


class CacheWarning(UserWarning):
    """A cache cannot be used; everything works without it, only slower."""


_lock = threading.Lock()
_warned: set[str] = set()


def warn_once(subject: str, message: str) -> None:
    """A CacheWarning, at most once for each subject in a process."""
    with _lock:
        if subject in _warned:
            return
        _warned.add(subject)
    warnings.warn(message, CacheWarning, stacklevel=2)


def cache_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder of all caches, which need not exist; ``None`` where there is no home directory."""
    given = os.environ if environment is None else environment
    if named := given.get("RUDA_CACHE_DIR"):
        return Path(named).expanduser()
    shared = Path(given.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():  # the specification: a relative one is ignored
        return shared / "ruda"
    try:
        return Path.home() / ".cache" / "ruda"
    except RuntimeError:
        return None


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write under a temporary name, make it durable, then give it its name.

    Readers see the old file or the whole new one; of two processes that write the same file, the
    last one's stays.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            for part in (data,) if isinstance(data, bytes) else data:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot; the file itself is durable
            os.fsync(folder)
    finally:
        os.close(folder)


def remove_stale(folder: Path) -> None:
    """Remove temporary files in ``folder`` that no living process can still be writing."""
    for path in folder.glob(f"*{TEMPORARY}"):
        try:
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink(missing_ok=True)
        except OSError:
            continue
