"""Where cached files live, and how they are written, listed and removed. Needs no torch.

    $RUDA_CACHE_DIR, else $XDG_CACHE_HOME/ruda, else ~/.cache/ruda
        nf4/<key>.safetensors    packed weights of one model file, see loading/cache.py
        hashes/<key>.json        the SHA-256 of an unchanged file, see loading/hashes.py

Nothing in here may stop a run: what cannot be read is a miss, what cannot be written one warning.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS, HASHES = "nf4", "hashes"
_ENDINGS = {WEIGHTS: ".safetensors", HASHES: ".json"}
_TEMPORARY = ".tmp"  # <key>.<random>.tmp: being written, or left by a process that was killed
_STALE_SECONDS = 24 * 3600
_LONGEST_HEADER = 64 * 1024 * 1024


class CacheWarning(UserWarning):
    """The cache cannot be used; everything works without it, only slower."""


_warned = False


def warn_once(message: str) -> None:
    """At most one warning a process: the cache is off, not the run."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{message}; going on without the cache", CacheWarning, stacklevel=2)


def cache_directory() -> Path | None:
    """The cache's folder, which need not exist; None (and one warning) where there is no home."""
    if named := os.environ.get("RUDA_CACHE_DIR"):
        return Path(named).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # noqa: PTH117 - the specification: a relative one is ignored
        return Path(shared) / "ruda"
    try:
        return Path.home() / ".cache" / "ruda"
    except RuntimeError:
        warn_once("[cache] there is no home directory; RUDA_CACHE_DIR names a folder for the cache")
        return None


def entry_path(kind: str, key: str) -> Path | None:
    """The file of a key (hexadecimal digits) in the `nf4` or `hashes` folder."""
    root = cache_directory()
    return None if root is None else root / kind / (key + _ENDINGS[kind])


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write under a temporary name, make it durable, then give it its name. Raises OSError.

    Readers see the old file or the whole new one. Two processes that write the same key both
    succeed, and the last one's file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class CacheEntry:
    """One file of the cache. `name`: the model's file, empty where the entry cannot be read."""

    path: Path
    kind: str
    nbytes: int
    used: float
    name: str
    detail: str


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for kind, ending in _ENDINGS.items():
        folder = root / kind
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.suffix in (ending, _TEMPORARY) and path.is_file() and not path.is_symlink():
                yield kind, path


def list_entries() -> list[CacheEntry]:
    """The packed models in the cache, those used last first."""
    root = cache_directory()
    found = []
    for kind, path in _files(root) if root is not None else ():
        if kind != WEIGHTS or path.suffix == _TEMPORARY:
            continue
        try:
            state = path.stat()
        except OSError:  # another process has just removed it
            continue
        stated = read_header(path) or {}
        meta = stated.get("__metadata__", {})
        detail = ", ".join(
            f"{label} {meta[key]}"
            for key, label in (("block_size", "block"), ("targets", "targets"))
            if key in meta
        )
        found.append(
            CacheEntry(path, kind, state.st_size, state.st_mtime, meta.get("model", ""), detail)
        )
    return sorted(found, key=lambda entry: -entry.used)


def clear() -> tuple[int, int]:
    """Remove every file of the cache: (packed models removed, bytes freed). Raises OSError.

    Only files that have the cache's own names are touched. A process that is reading an entry keeps
    what it has read.
    """
    root = cache_directory()
    count = freed = 0
    for kind, path in _files(root) if root is not None else ():
        size = path.stat().st_size
        path.unlink(missing_ok=True)
        freed += size
        count += kind == WEIGHTS and path.suffix != _TEMPORARY
    return count, freed


def remove_stale() -> None:
    """Remove temporary files that no living process can still be writing."""
    root = cache_directory()
    for _, path in _files(root) if root is not None else ():
        if path.suffix == _TEMPORARY:
            try:
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink(missing_ok=True)
            except OSError:
                continue


def read_header(path: Path) -> dict[str, Any] | None:
    """The header of a safetensors file, with its length under "" ; None for anything else."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
                return None
            header = json.loads(file.read(length))
    except (OSError, ValueError, struct.error):
        return None
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        return None
    header[""] = 8 + length
    return header
