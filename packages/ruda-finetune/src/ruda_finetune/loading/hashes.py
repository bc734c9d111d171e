"""The SHA-256 of model files, in the background and remembered.

A hash is remembered beside the file's path, device, inode, size, modification time and change time.
It stands for the file as long as all of these are the same. The change time cannot be set by a
program, so an edit in place is noticed even where the modification time was put back. What is not
noticed: an edit on a file system that does not keep change times, or under a clock that was turned
back. A file that changed less than two seconds before it was hashed is not remembered, since a
second change could fall into the same tick of the clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from ruda_runtime.cachefiles import write_atomically

from ..cache_files import HASHES, entry_path, warn_once
from ..errors import ModelFileError

_SETTLED_SECONDS = 2.0


def file_sha256(path: Path, remember: bool = False) -> str:
    """The hexadecimal SHA-256 of a file; with `remember`, from the cache if it has not changed.

    Raises `ModelFileError` for a file that cannot be read or that changes meanwhile.
    """
    try:
        before = path.stat()
        if remember and (known := _remembered(path, before)) is not None:
            return known
        with path.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        after = path.stat()
    except OSError as error:
        raise ModelFileError(f"[load_model] {path} cannot be read: {error.strerror}") from error
    if _identity(path, before) != _identity(path, after):
        raise ModelFileError(f"[load_model] {path} was changed while it was read")
    settled = time.time() - max(before.st_mtime, before.st_ctime) > _SETTLED_SECONDS
    if remember and settled:
        _remember(path, before, digest)
    return digest


def same_file(path: Path, before: os.stat_result) -> bool:
    """Whether a file is still the one that `before` was taken from."""
    try:
        return _identity(path, path.stat()) == _identity(path, before)
    except OSError:
        return False


def _identity(path: Path, state: os.stat_result) -> dict[str, object]:
    return {
        "path": str(path.absolute()),
        "device": state.st_dev,
        "inode": state.st_ino,
        "size": state.st_size,
        "modified": state.st_mtime_ns,
        "changed": state.st_ctime_ns,
    }


def _entry(path: Path) -> Path | None:
    # its bytes: a path need not be UTF-8
    return entry_path(HASHES, hashlib.sha256(os.fsencode(path.absolute())).hexdigest())


def _remembered(path: Path, state: os.stat_result) -> str | None:
    entry = _entry(path)
    if entry is None:
        return None
    try:
        stored = json.loads(entry.read_bytes())
        digest = stored.pop("sha256")
        int(digest, 16)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    same = stored == _identity(path, state) and len(digest) == 64
    return digest if same else None


def _remember(path: Path, state: os.stat_result, digest: str) -> None:
    entry = _entry(path)
    if entry is None:
        return
    text = json.dumps({**_identity(path, state), "sha256": digest})
    try:
        write_atomically(entry, text.encode())
    except OSError as error:
        warn_once(f"[cache] {entry.parent} cannot be written ({error.strerror})")
