"""Safetensors checkpoints: one file or the shards of an index, streamed tensor by tensor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import ModelFileError
from .sources import PIECE_ELEMENTS, Entry

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# safetensors' names of the types whose values are read as floats
_FLOATS = ("F64", "F32", "F16", "BF16")
_DIRECT = (torch.float32, torch.float16, torch.bfloat16)


class SafetensorsSource:
    """The tensors of `model.safetensors`, or of the shards that its index lists.

    Opening reads the headers of all files and checks them: every shard lies inside the directory,
    the index and the shards name the same tensors, no tensor is in two files. Raises
    `ModelFileError` naming the file and what is wrong.
    """

    def __init__(self, directory: str | os.PathLike[str], operator: str) -> None:
        self._directory = Path(directory)
        self._operator = operator
        self._handle: Any = None
        self._open_file: Path | None = None
        if not self._directory.is_dir():
            raise ModelFileError(f"[{operator}] {self._directory} is not a directory")
        single, index = self._directory / SINGLE, self._directory / INDEX
        if single.exists() and index.exists():
            raise ModelFileError(
                f"[{operator}] {self._directory} has both {SINGLE} and {INDEX}: remove the one "
                "that does not belong to this model"
            )
        if index.exists():
            self._entries = self._read_index(index)
        elif single.exists():
            self._entries = self._read_header(single)
        else:
            pickles = [f.name for f in sorted(self._directory.glob("*.bin"))]
            hint = f"; {shown(pickles)}: pickled weights are never read" if pickles else ""
            raise ModelFileError(
                f"[{operator}] {self._directory} has neither {SINGLE} nor {INDEX}{hint}"
            )

    @property
    def path(self) -> Path:
        return self._directory

    @property
    def entries(self) -> dict[str, Entry]:
        return self._entries

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(entry.file for entry in self._entries.values()))

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        flat = self._tensor(name).reshape(-1)
        for start in range(0, flat.numel(), PIECE_ELEMENTS):
            yield flat[start : start + PIECE_ELEMENTS]

    def read(self, name: str) -> torch.Tensor:
        tensor = self._tensor(name)
        return tensor if tensor.dtype in _DIRECT else tensor.to(torch.float32)

    def close(self) -> None:
        """Unmap the file that was read last."""
        self._handle, self._open_file = None, None

    def _tensor(self, name: str) -> torch.Tensor:
        """One tensor, mapped from its file: its pages are read when they are touched."""
        file = self._entries[name].file
        if self._open_file != file:
            self.close()
            self._handle, self._open_file = self._open(file), file
        try:
            return self._handle.get_tensor(name)
        except Exception as error:  # the library's own class, or OSError for a file that shrank
            raise ModelFileError(
                f"[{self._operator}] {file}: tensor {name!r} cannot be read: {error}"
            ) from error

    def _open(self, file: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(str(file), framework="pt", device="cpu")
        except (SafetensorError, OSError, ValueError) as error:
            size = file.stat().st_size if file.exists() else 0
            raise ModelFileError(
                f"[{self._operator}] {file} ({size} bytes) is no readable safetensors file, it is "
                f"truncated, damaged or of another format: {error}"
            ) from error

    def _read_header(self, file: Path) -> dict[str, Entry]:
        handle = self._open(file)
        entries = {}
        in_order = getattr(handle, "offset_keys", handle.keys)  # by place in the file, if it can
        for name in in_order():
            part = handle.get_slice(name)
            stored = part.get_dtype()
            entries[name] = Entry(tuple(part.get_shape()), stored, stored in _FLOATS, file)
        return entries

    def _read_index(self, index: Path) -> dict[str, Entry]:
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            items = {str(name): str(shard) for name, shard in weight_map.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(
                f"[{self._operator}] {index} is no index of safetensors shards: {error!r}"
            ) from error
        entries: dict[str, Entry] = {}
        for shard in sorted(set(items.values())):
            file = self._shard_path(index, shard)
            found = self._read_header(file)
            twice = [name for name in found if name in entries]
            listed = {name for name, of in items.items() if of == shard}
            for names, problem in (
                (twice, "are in two shards"),
                (sorted(listed - found.keys()), "are listed in the index but not in the shard"),
                (sorted(found.keys() - listed), "are in the shard but not listed for it"),
            ):
                if names:
                    raise ModelFileError(
                        f"[{self._operator}] {file}: {len(names)} tensors {problem}: {shown(names)}"
                    )
            entries.update(found)
        return entries

    def _shard_path(self, index: Path, shard: str) -> Path:
        root = self._directory.resolve()
        file = self._directory / shard
        # A link that leads out of the directory is as foreign as `..`, except into the blob store
        # of a Hugging Face cache, where every file of a snapshot is such a link.
        inside = file.resolve().is_relative_to(root) or (
            file.is_symlink() and Path(shard).name == shard and _is_cache_blob(file, root)
        )
        if not inside:
            raise ModelFileError(
                f"[{self._operator}] {index} names the shard {shard!r}, which lies outside "
                f"{self._directory}"
            )
        if not file.is_file():
            raise ModelFileError(
                f"[{self._operator}] {index} names the shard {shard!r}, which does not exist"
            )
        return file


def _is_cache_blob(file: Path, root: Path) -> bool:
    """Whether `file` in `<model>/snapshots/<revision>` links to a file in `<model>/blobs`."""
    return root.parent.name == "snapshots" and file.resolve().parent == (
        root.parent.parent / "blobs"
    )


def shown(names: list[str], limit: int = 8) -> str:
    """A list of names for a message, cut after `limit`."""
    more = f", … ({len(names) - limit} more)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
