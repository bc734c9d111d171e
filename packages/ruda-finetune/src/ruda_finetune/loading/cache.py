"""Packed NF4 weights kept between runs.

An entry is one safetensors file with `<layer>.packed` and `<layer>.scales` for every NF4 layer and,
in its header, what it was made from. Dense tensors are not in it: they are read from the model.

The key is the SHA-256 of: the format's version, the versions of the packages that quantise, the
model files' hash, the block size and the targets. The compute dtype is not part of it, since NF4
is made from the stored values. At load the header must repeat every part of the key, the layout
must be exactly that of the tensors it lists, and the data must have the SHA-256 that the header
states. An entry that fails in anything is a miss, and is written again.

The data is read, not mapped: a mapped file that somebody truncates ends the process, and the copy
costs a hundredth of what it saves.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ruda_runtime.cachefiles import write_atomically

from .._version import __version__
from ..cache_files import WEIGHTS, entry_path, read_header, remove_stale, warn_once

_FORMAT = "ruda-nf4 1"
_TYPES = {"U8": torch.uint8, "F32": torch.float32}

#: {qualified name of the layer: (packed codes, scales)}
Packed = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class CacheKey:
    """What packed weights depend on."""

    sha256: str
    block_size: int
    targets: str
    model: str  # the file's name, for people

    @staticmethod
    def of(
        sha256: str, block_size: int, target_modules: str | Sequence[str], model: str
    ) -> CacheKey:
        """`target_modules` as `load_model` takes it; a list's order does not matter."""
        if isinstance(target_modules, str):
            return CacheKey(sha256, block_size, target_modules, model)
        return CacheKey(sha256, block_size, json.dumps(sorted(set(target_modules))), model)

    def metadata(self) -> dict[str, str]:
        """The parts of the key as the header states them."""
        return {
            "format": _FORMAT,
            "ruda-finetune": __version__,
            "ruda-blas": _blas_version(),
            "source_sha256": self.sha256,
            "block_size": str(self.block_size),
            "targets": self.targets,
        }

    @property
    def digest(self) -> str:
        text = json.dumps(self.metadata(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _blas_version() -> str:
    try:
        return version("ruda-blas")
    except PackageNotFoundError:  # a source tree
        import ruda_blas

        return str(ruda_blas.__version__)


def read_packed(key: CacheKey) -> Packed | None:
    """The entry of a key, checked; None for a miss of any kind."""
    path = entry_path(WEIGHTS, key.digest)
    header = read_header(path) if path is not None else None
    if path is None or header is None:
        return None
    start = header.pop("")
    stated = header.pop("__metadata__")
    if {name: stated.get(name) for name in key.metadata()} != key.metadata():
        return None
    try:
        tensors = _read_tensors(path, start, header, stated.get("data_sha256"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None  # truncated, foreign, or removed a moment ago
    names = [name.removesuffix(".packed") for name in tensors if name.endswith(".packed")]
    if 2 * len(names) != len(tensors):
        return None
    try:
        found = {name: (tensors[name + ".packed"], tensors[name + ".scales"]) for name in names}
    except KeyError:
        return None
    with contextlib.suppress(OSError):  # a read-only cache works as well
        os.utime(path)  # used now, for `ruda-finetune cache list`
    return found


def _read_tensors(
    path: Path, start: int, header: Mapping[str, Any], sha256: object
) -> dict[str, torch.Tensor]:
    """Every tensor of a file whose data is gapless. Raises ValueError for any other layout."""
    digest = hashlib.sha256()
    tensors: dict[str, torch.Tensor] = {}
    position = 0
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != start + max(
            (entry["data_offsets"][1] for entry in header.values()), default=0
        ):
            raise ValueError("the file is truncated")
        file.seek(start)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            dtype, (count,) = _TYPES[entry["dtype"]], entry["shape"]
            if begin != position or end - begin != count * dtype.itemsize or end < begin:
                raise ValueError(f"{name} lies in another place than its shape says")
            tensor = torch.empty(count, dtype=dtype)
            view = memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type]
            done = 0
            while done < len(view):
                got = file.readinto(view[done:])
                if not got:
                    raise ValueError("the file is truncated")
                done += got
            digest.update(view)
            tensors[name] = tensor
            position = end
    if digest.hexdigest() != sha256:
        raise ValueError("the data is damaged")
    return tensors


_writers: list[threading.Thread] = []


def write_packed(key: CacheKey, packed: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write an entry in a thread; the process waits for it at its end. Failure is one warning.

    The tensors may be on any device and must not change any more.
    """
    path = entry_path(WEIGHTS, key.digest)
    if path is None or not packed:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        warn_once(f"[cache] {path.parent} cannot be written ({error.strerror})")
        return
    if not os.access(path.parent, os.W_OK | os.X_OK):
        warn_once(f"[cache] {path.parent} cannot be written")
        return
    tensors = {
        f"{name}.{part}": tensor.detach()
        for name, pair in packed.items()
        for part, tensor in zip(("packed", "scales"), pair)
    }
    thread = threading.Thread(target=_write, args=(path, key, tensors), name="ruda-cache-writer")
    _writers[:] = [writer for writer in _writers if writer.is_alive()]
    _writers.append(thread)
    thread.start()


def wait_for_writers() -> None:
    """Return when every entry that this process writes is on disk."""
    for thread in list(_writers):
        thread.join()


def _write(path: Path, key: CacheKey, tensors: Mapping[str, torch.Tensor]) -> None:
    # scales first: every tensor then starts at a multiple of its element's size
    order = sorted(tensors, key=lambda name: tensors[name].dtype != torch.float32)
    names = {dtype: name for name, dtype in _TYPES.items()}
    header: dict[str, Any] = {}
    position = 0
    for name in order:
        end = position + tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": names[tensors[name].dtype],
            "shape": [tensors[name].numel()],
            "data_offsets": [position, end],
        }
        position = end

    def data() -> Iterator[memoryview]:  # one tensor's copy at a time
        for name in order:
            yield memoryview(tensors[name].cpu().numpy()).cast("B")  # type: ignore[arg-type]

    digest = hashlib.sha256()
    for view in data():
        digest.update(view)
    stated = {**key.metadata(), "model": key.model, "data_sha256": digest.hexdigest()}
    text = json.dumps({"__metadata__": stated, **header}).encode()
    text += b" " * (-len(text) % 8)
    try:
        write_atomically(path, itertools.chain([struct.pack("<Q", len(text)), text], data()))
        remove_stale()
    except OSError as error:
        warn_once(f"[cache] {path} cannot be written ({error.strerror})")
