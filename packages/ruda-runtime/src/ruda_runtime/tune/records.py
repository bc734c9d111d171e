"""Decisions that were measured, in memory and on disk.

A record is one file, ``<cache>/tuning/<SHA-256 of the key>.json``: the record and a checksum of it.
It serves only where its whole key is the one that is asked for. Anything else that a file may hold,
and every error of reading it, is a miss.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ruda_runtime.cachefiles import remove_stale, warn_once, write_atomically
from ruda_runtime.tune.measure import Measurement

FORMAT = 1
FOLDER = "tuning"
_LARGEST_FILE = 1 << 20
_FILE = re.compile(r"[0-9a-f]{64}\.json")


def canonical(value: Any) -> str:
    """One text for equal JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """The outcome of one tune.

    Attributes:
        key: everything that the choice depends on, as JSON values.
        choice: the reference's name or a candidate's.
        created: seconds since 1970.
        measured: for each candidate that was timed, its speed-up and relative MAD.
        left_out: for each candidate that was not, why: ``"unsupported"``, ``"budget"``,
            ``"max_candidates"`` or ``"readback_limit"``.
    """

    key: Mapping[str, Any]
    choice: str
    created: float
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def fresh(self, now: float, max_age: float) -> bool:
        """Whether it is young enough; one from the future is not."""
        return 0.0 <= now - self.created <= max_age

    def to_bytes(self) -> bytes:
        body = canonical({"format": FORMAT, **asdict(self)})
        return f'{{"checksum":"{digest(body)}","record":{body}}}\n'.encode()

    @classmethod
    def from_bytes(cls, data: bytes, key: Mapping[str, Any]) -> Record:
        """The record in a file's content.

        Raises:
            ValueError, KeyError, TypeError: it is no whole record of that key.
        """
        outer = json.loads(data)
        body = outer["record"]
        if set(outer) != {"checksum", "record"} or outer["checksum"] != digest(canonical(body)):
            raise ValueError("the checksum is wrong")
        if body["format"] != FORMAT or canonical(body["key"]) != canonical(key):
            raise ValueError("it belongs to another key or format")
        created, choice = float(body["created"]), body["choice"]
        if choice not in (key["reference"], *key["candidates"]) or not math.isfinite(created):
            raise ValueError("its choice is none of the candidates")
        measured = {
            str(name): Measurement(float(item["speedup"]), float(item["relative_mad"]))
            for name, item in body["measured"].items()
        }
        left_out = {str(name): str(reason) for name, reason in body["left_out"].items()}
        return cls(key, choice, created, measured, left_out)


class MemoryRecords:
    """A bounded table; the record that was put in first goes first."""

    def __init__(self, max_records: int) -> None:
        self._max = max_records
        self._records: dict[Any, Record] = {}
        self._lock = threading.Lock()

    def get(self, key: Any) -> Record | None:
        return self._records.get(key)

    def put(self, key: Any, record: Record) -> None:
        with self._lock:
            self._records.pop(key, None)
            while len(self._records) >= self._max:
                del self._records[next(iter(self._records))]
            self._records[key] = record

    def remove(self, key: Any) -> None:
        with self._lock:
            self._records.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._records.clear()

    def values(self) -> list[Record]:
        with self._lock:
            return list(self._records.values())

    def reset_lock(self) -> None:
        """In a forked child, where a thread of the parent may have held it."""
        self._lock = threading.Lock()


class DiskRecords:
    """The records in a folder, which several processes may share.

    Args:
        folder: need not exist; ``None``: nothing is kept on disk.
        max_records: more files than that are removed, the oldest first, when one is written.
        max_age: seconds; older ones are misses, and removed.
        now: seconds since 1970.
    """

    def __init__(
        self, folder: Path | None, max_records: int, max_age: float, now: Callable[[], float]
    ) -> None:
        self.folder = folder
        self._max_records = max_records
        self._max_age = max_age
        self._now = now

    def path(self, key: Mapping[str, Any]) -> Path | None:
        """The file of a key."""
        return self.folder / f"{digest(canonical(key))}.json" if self.folder else None

    def load(self, key: Mapping[str, Any]) -> Record | None:
        """The record of exactly that key, or ``None``."""
        path = self.path(key)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                record = Record.from_bytes(file.read(_LARGEST_FILE), key)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if record.fresh(self._now(), self._max_age):
            return record
        _remove(path)
        return None

    def store(self, record: Record) -> None:
        """Write a record; where that is impossible, warn once and go on without the disk."""
        path = self.path(record.key)
        if path is None:
            return
        try:
            write_atomically(path, record.to_bytes())
            self._prune(path)
        except OSError as error:
            warn_once(
                FOLDER,
                f"[tune] cannot write to {path.parent}: {error.strerror or error}; going on with "
                "tuning records in memory. Set RUDA_CACHE_DIR to a folder that can be written",
            )
            self.folder = None

    def _prune(self, kept: Path) -> None:
        folder = kept.parent
        remove_stale(folder)
        ages = []
        for path in folder.iterdir():
            if path != kept and _FILE.fullmatch(path.name):
                try:
                    ages.append((path.stat().st_mtime, path.name, path))
                except OSError:  # another process has just removed it
                    continue
        for _, _, path in sorted(ages)[: max(0, len(ages) + 1 - self._max_records)]:
            _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
