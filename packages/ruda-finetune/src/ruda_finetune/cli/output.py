"""A file that is opened before long work and written after it."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ruda_finetune.errors import DataError


@contextmanager
def reserved(path: Path, command: str) -> Iterator[io.FileIO]:
    """Open `path` for `rewrite`, so that a place that cannot be written is found out first.

    What is in it stays until `rewrite`; a file that had to be made is removed when the work fails.
    Raises `DataError`.
    """
    if not path.parent.is_dir():
        raise DataError(f"[{command}] --output {path}: the folder {path.parent} does not exist")
    made = not path.exists()
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise DataError(
            f"[{command}] --output {path} cannot be written: {error.strerror or error}"
        ) from error
    with file:
        try:
            yield file
        except BaseException:
            if made:
                path.unlink(missing_ok=True)
            raise


def rewrite(file: io.FileIO, text: str) -> None:
    """Replace what a reserved file holds; a pipe or terminal has nothing to replace.

    Raises OSError. The file has no buffer: one that could not be emptied would fail again when it
    is closed.
    """
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.truncate(0)
    left = memoryview(text.encode("utf-8"))
    while left:
        left = left[file.write(left) :]
