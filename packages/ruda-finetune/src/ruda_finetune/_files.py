"""Writing files so that a full disk or a crash leaves what was there before."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make renames inside a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def readable(text: str) -> str:
    """A path's text for people and for UTF-8 files: bytes that are not UTF-8 appear as `\\xe4`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_writable(directory: Path) -> None:
    """Raise OSError unless files can be made in `directory`, which need not exist.

    Leaves nothing behind: what had to be made for it is removed.
    """
    missing = []
    place = directory
    while not os.path.lexists(place):
        missing.append(place)
        place = place.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    finally:
        for made in missing:
            with contextlib.suppress(OSError):  # never made, or in use by now
                made.rmdir()


def replace_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write several files of one directory: all are on disk before the first takes its name.

    The files are renamed in the mapping's order. An error before that (no space, no permission)
    leaves the directory's files as they were and removes the temporary ones.
    """
    directory.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=directory))
    try:
        for name, data in contents.items():
            with (staging / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for name in contents:
            (staging / name).replace(directory / name)
        sync_directory(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
