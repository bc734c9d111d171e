"""Compiled kernels in memory and on disk, and how often each place had one."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass

from ruda_runtime.cachefiles import cache_directory, warn_once, write_atomically
from ruda_runtime.kernel.artifact import Artifact, pack, unpack

_lock = threading.Lock()
_memory: dict[str, Artifact] = {}


@dataclass
class _Counters:
    compiled: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    bundle_hits: int = 0


_counters = _Counters()


def count(event: str) -> None:
    with _lock:
        setattr(_counters, event, getattr(_counters, event) + 1)


def counts() -> dict[str, int]:
    with _lock:
        return dict(vars(_counters))


def from_memory(key: str) -> Artifact | None:
    with _lock:
        return _memory.get(key)


def keep_in_memory(key: str, artifact: Artifact) -> None:
    with _lock:
        _memory[key] = artifact


def forget_memory() -> None:
    """Forget the compiled kernels of this process; plans that exist stay."""
    with _lock:
        _memory.clear()


def from_disk(key: str) -> Artifact | None:
    """A file that another run wrote for just this key; what cannot be read is a miss."""
    folder = cache_directory()
    if folder is None:
        return None
    try:
        data = (folder / "kernels" / _file_name(key)).read_bytes()
    except OSError:
        return None
    return unpack(data, key)


def to_disk(key: str, artifact: Artifact) -> None:
    """Write the file; a folder that cannot be written is one warning."""
    folder = cache_directory()
    if folder is None:
        return
    try:
        write_atomically(folder / "kernels" / _file_name(key), pack(artifact, key))
    except OSError as error:
        warn_once(
            "kernels",
            f"compiled kernels cannot be kept in {folder}: {error}; every process compiles them "
            "again. Set RUDA_CACHE_DIR to a folder that can be written",
        )


def _file_name(key: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{digest[:2]}/{digest[2:]}.kernel"
