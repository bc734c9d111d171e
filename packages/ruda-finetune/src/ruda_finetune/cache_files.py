"""Where cached files live, and how they are written, listed and removed. Needs no torch.

    $RUDA_CACHE_DIR, else $XDG_CACHE_HOME/ruda, else ~/.cache/ruda
        nf4/<key>.safetensors    packed weights of one model file, see loading/cache.py
        hashes/<key>.json        the SHA-256 of an unchanged file, see loading/hashes.py

Nothing in here may stop a run: what cannot be read is a miss, what cannot be written one warning.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruda_runtime import cachefiles
from ruda_runtime.cachefiles import TEMPORARY, CacheWarning

__all__ = [
    "HASHES",
    "WEIGHTS",
    "CacheEntry",
    "CacheWarning",
    "cache_directory",
    "clear",
    "entry_path",
    "list_entries",
    "read_header",
    "remove_stale",
    "warn_once",
]

WEIGHTS, HASHES = "nf4", "hashes"
_ENDINGS = {WEIGHTS: ".safetensors", HASHES: ".json"}
_LONGEST_HEADER = 64 * 1024 * 1024


def warn_once(message: str) -> None:
    """At most one warning a process: the cache is off, not the run."""
    cachefiles.warn_once("ruda-finetune", f"{message}; going on without the cache")


def cache_directory() -> Path | None:
    """The cache's folder, which need not exist; None (and one warning) where there is no home."""
    folder = cachefiles.cache_directory()
    if folder is None:
        warn_once("[cache] there is no home directory; RUDA_CACHE_DIR names a folder for the cache")
    return folder


def entry_path(kind: str, key: str) -> Path | None:
    """The file of a key (hexadecimal digits) in the `nf4` or `hashes` folder."""
    root = cache_directory()
    return None if root is None else root / kind / (key + _ENDINGS[kind])


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
            if path.suffix in (ending, TEMPORARY) and path.is_file() and not path.is_symlink():
                yield kind, path


def list_entries() -> list[CacheEntry]:
    """The packed models in the cache, those used last first."""
    root = cache_directory()
    found = []
    for kind, path in _files(root) if root is not None else ():
        if kind != WEIGHTS or path.suffix == TEMPORARY:
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
        count += kind == WEIGHTS and path.suffix != TEMPORARY
    return count, freed


def remove_stale() -> None:
    """Remove temporary files that no living process can still be writing."""
    root = cache_directory()
    if root is None:
        return
    for kind in _ENDINGS:
        cachefiles.remove_stale(root / kind)


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
