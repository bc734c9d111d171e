"""Checkpoint files: written beside the old one, read back, then promoted."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._files import sync_directory
from ..errors import CheckpointError

FORMAT = "ruda-finetune checkpoint"
VERSION = 1
_LITTLE_SPACE = 1 << 20  # bytes; a writer that failed with less left ran out of space
_START_AFRESH = "start the run afresh in another directory"
NEXT, LATEST, PREVIOUS = "next.pt", "latest.pt", "previous.pt"


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file that cannot be read whole: cut short, changed, or not one at all."""


class NoCheckpointError(CheckpointError):
    """A run's directory without any checkpoint: the run ended before its first save."""


def to_cpu(value: Any) -> Any:
    """A copy of nested dicts, lists and tuples with every tensor copied to CPU memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, Mapping):
        return {key: to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_cpu(entry) for entry in value)
    return value


def state_digest(value: Any) -> str:
    """SHA-256 of nested dicts, lists, tuples, plain values and CPU tensors.

    The zip checksums inside a torch file are not looked at when it is loaded; this digest is.
    """
    digest = hashlib.sha256()

    def add(entry: Any) -> None:
        if isinstance(entry, torch.Tensor):
            digest.update(f"tensor {entry.dtype} {list(entry.shape)};".encode())
            digest.update(entry.contiguous().reshape(-1).view(torch.uint8).numpy())
        elif isinstance(entry, Mapping):
            digest.update(f"dict {len(entry)};".encode())
            for key, inner in entry.items():
                digest.update(f"{key!r}:".encode())
                add(inner)
        elif isinstance(entry, (list, tuple)):
            digest.update(f"{type(entry).__name__} {len(entry)};".encode())
            for inner in entry:
                add(inner)
        elif entry is None or isinstance(entry, (bool, int, float, str, torch.dtype)):
            digest.update(f"{entry!r};".encode())
        else:
            raise CheckpointError(
                f"[save] a checkpoint holds tensors and plain values only, got "
                f"{type(entry).__name__}: {entry!r:.80}"
            )

    add(value)
    return digest.hexdigest()


def write_checkpoint(directory: Path, state: Mapping[str, Any]) -> Path:
    """Write `state` as the directory's `latest.pt`; the last one becomes `previous.pt`.

    The file is written as `next.pt`, flushed to disk and read back before anything is renamed, so
    a kill or a full disk at any moment leaves a good checkpoint behind. Raises `CheckpointError`.
    """
    path, latest = directory / NEXT, directory / LATEST
    digest = state_digest(state)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            torch.save(
                {"format": FORMAT, "version": VERSION, "digest": digest, "state": state}, file
            )
            file.flush()
            os.fsync(file.fileno())
        _, read_back = _read(path)
        if read_back != digest:
            raise DamagedCheckpointError(f"{path} reads back differently from what was written")
        if latest.exists():
            latest.replace(directory / PREVIOUS)
        path.replace(latest)
        sync_directory(directory)
    except (OSError, RuntimeError, CheckpointError) as error:
        full = _is_full(directory, error)
        path.unlink(missing_ok=True)
        raise CheckpointError(_failure(path, latest, error, full)) from error
    return latest


def _is_full(directory: Path, error: Exception) -> bool:
    """Whether writing failed for want of space; needs the failed file still in its place.

    torch's zip writer turns a full disk into a RuntimeError about positions.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    try:
        return shutil.disk_usage(directory).free < _LITTLE_SPACE
    except OSError:
        return False


def _failure(path: Path, latest: Path, error: Exception, full: bool) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if full and not isinstance(error, OSError):
        reason = os.strerror(errno.ENOSPC)
    text = f"[save] cannot write {path}: {reason}"
    if full:
        text += "; free some space and resume"
    if latest.exists():
        return f"{text}. The last good checkpoint stays: {latest}"
    return f"{text}. There is no earlier checkpoint"


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """The state in a file and the digest computed from it."""
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"[resume] no checkpoint at {path}") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged zip or pickle fails in many ways
        # a zip that is cut short makes torch seek to before its start: invalid argument
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise CheckpointError(
                f"[resume] {path} cannot be read: {error.strerror or error}"
            ) from error
        # torch's own text advises loading the file with code in it: never the way out
        raise DamagedCheckpointError(
            f"[resume] {path} is damaged: it is cut short, was changed, or is no checkpoint"
        ) from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise DamagedCheckpointError(f"[resume] {path} is no checkpoint of ruda-finetune")
    if payload.get("version") != VERSION:
        raise CheckpointError(
            f"[resume] {path} has checkpoint version {payload.get('version')}; this ruda-finetune "
            f"reads version {VERSION}: use the release that wrote it"
        )
    state = payload["state"]
    try:
        digest = state_digest(state)
    except CheckpointError as error:
        raise DamagedCheckpointError(f"[resume] {path} is damaged: {error}") from error
    if digest != payload.get("digest"):
        raise DamagedCheckpointError(f"[resume] {path} is damaged: its checksum does not match")
    return state, digest


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint file, checked against its checksum; loads no code.

    Raises `DamagedCheckpointError` for a damaged file, `CheckpointError` for a missing one or
    another format version.
    """
    return _read(path)[0]


def _is_good(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except CheckpointError:
        return False
    return True


def find_checkpoint(path: Path) -> tuple[dict[str, Any], Path, str]:
    """The newest good state at `path`: (state, file, message).

    A file is read as it is. In a directory `latest.pt` counts, and `previous.pt` where it is
    missing or damaged: then the message says so (otherwise it is empty). A save that was killed
    between its two renames is finished first.
    """
    if not path.is_dir():
        return read_checkpoint(path), path, ""
    latest, previous = path / LATEST, path / PREVIOUS
    if not latest.exists() and _is_good(path / NEXT):
        (path / NEXT).replace(latest)
    try:
        return read_checkpoint(latest), latest, ""
    except DamagedCheckpointError as error:
        problem = str(error).removeprefix("[resume] ")
    except CheckpointError:
        if latest.exists():
            raise
        problem = f"{latest} is missing (a save was interrupted)"
    if not previous.exists():
        if latest.exists():
            raise DamagedCheckpointError(
                f"[resume] {problem}; there is no {PREVIOUS} to use: {_START_AFRESH}"
            )
        raise NoCheckpointError(
            f"[resume] no checkpoint in {path}: neither {LATEST} nor {PREVIOUS}"
        )
    try:
        state = read_checkpoint(previous)
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(
            f"[resume] no checkpoint in {path} is whole: {problem}; "
            f"{str(error).removeprefix('[resume] ')}. {_START_AFRESH.capitalize()}"
        ) from error
    return state, previous, f"{problem}: going back to the older checkpoint {previous}"
