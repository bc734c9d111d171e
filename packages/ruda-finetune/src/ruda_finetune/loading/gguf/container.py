"""Reading a GGUF file: metadata, tensor directory, and the tensors' bytes as a memory map.

The layout is that of the GGUF specification, versions 2 and 3, little-endian: magic, version,
tensor count, metadata count, the metadata as (key, type, value), the tensor directory as (name,
dimensions, type, offset), padding to `general.alignment`, the data. Every length is checked
against the file before it is used, so that a truncated or foreign file is an error that says where.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFileError
from .quants import FORMATS, SUPPORTED_TYPES, BlockFormat, dequantize

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of a GGUF file.

    `shape` is in PyTorch's order (GGUF stores the fastest dimension first); `data` is the mapped
    bytes, read from disk only when touched.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    offset: int
    data: NDArray[np.uint8]
    path: Path

    @property
    def type_name(self) -> str:
        """The name of the stored type: `F32`, `Q4_1`, `Q6_K`, …"""
        return self.format.name

    def require_supported(self) -> None:
        """Raise `ModelFileError` if this tensor's type cannot be decoded."""
        if self.type_name not in SUPPORTED_TYPES:
            raise ModelFileError(
                f"[gguf] {self.path}: tensor {self.name!r} is stored as {self.type_name}, which "
                f"cannot be read; supported types: {', '.join(SUPPORTED_TYPES)}. Use a file in one "
                "of these (Q8_0 and Q4_K_M files usually are)."
            )

    def dequantize(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The values as float32 in `shape`. `out`: a contiguous float32 array of as many values."""
        self.require_supported()
        return dequantize(self.data, self.type_name, out).reshape(self.shape)


@dataclass(frozen=True)
class GGUFFile:
    """The contents of a GGUF file: metadata and tensors by name, in the file's order."""

    path: Path
    version: int
    alignment: int
    data_offset: int
    metadata: dict[str, Any] = field(repr=False)
    tensors: dict[str, GGUFTensor] = field(repr=False)

    @property
    def architecture(self) -> str:
        """`general.architecture`: `llama`, `qwen2`, …"""
        return str(self.metadata["general.architecture"])


class _Reader:
    """A cursor over the header that refuses to run past the end of the file."""

    def __init__(self, path: Path, buffer: NDArray[np.uint8]) -> None:
        self.path = path
        self.view = memoryview(buffer)  # type: ignore[arg-type]
        self.size = buffer.size
        self.position = 0
        self.what = "the header"

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(
            f"[open_gguf] {self.path}: {message} (while reading {self.what}, byte {self.position} "
            f"of {self.size})"
        )

    def need(self, count: int, each: int = 1) -> None:
        if count < 0 or count * each > self.size - self.position:
            raise self.fail(
                f"the file is truncated or damaged: {count * each} more bytes were expected, "
                f"{self.size - self.position} are left"
            )

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size)
        (value,) = struct.unpack_from("<" + code, self.view, self.position)
        self.position += size
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self.need(length)
        raw = bytes(self.view[self.position : self.position + length])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"a string is not UTF-8: {error}") from None
        self.position += length
        return text

    def strings(self, count: int) -> Iterator[str]:
        # A vocabulary has 10^5 of these: the checks of `string`, without its call overhead.
        unpack = struct.Struct("<Q").unpack_from
        view, position, size = self.view, self.position, self.size
        for _ in range(count):
            if position + 8 > size:
                self.position = position
                self.need(8)
            (length,) = unpack(view, position)
            position += 8
            if length > size - position:
                self.position = position
                self.need(length)
            try:
                yield str(view[position : position + length], "utf-8")
            except UnicodeDecodeError as error:
                self.position = position
                raise self.fail(f"a string is not UTF-8: {error}") from None
            position += length
        self.position = position

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.fail(f"unknown metadata type {kind}")
        element, count = self.scalar("I"), self.scalar("Q")
        if element in _SCALARS:
            code = _SCALARS[element]
            size = struct.calcsize("<" + code)
            self.need(count, size)
            values = struct.unpack_from(f"<{count}{code}", self.view, self.position)
            self.position += count * size
            return list(values)
        if element == _STRING:
            self.need(count, 8)
            return list(self.strings(count))
        if element == _ARRAY:
            self.need(count, 12)
            return [self.value(_ARRAY) for _ in range(count)]
        raise self.fail(f"unknown metadata array type {element}")


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file: its metadata is read, its tensors are mapped.

    Nothing of the tensor data is read yet. Raises `ModelFileError` for a file that is missing, no
    GGUF file, of an unknown version or byte order, truncated, or damaged; the message names the
    file and the place. A tensor type that cannot be decoded is an error only when it is read.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"[open_gguf] {path} is not a file")
    if path.stat().st_size < 24:
        raise ModelFileError(
            f"[open_gguf] {path} is no GGUF file: it has {path.stat().st_size} bytes, a header "
            "alone has 24"
        )
    buffer = np.memmap(path, dtype=np.uint8, mode="r")
    reader = _Reader(path, buffer)
    magic = bytes(buffer[:4])
    if magic != _MAGIC:
        raise ModelFileError(
            f"[open_gguf] {path} is no GGUF file: it begins with {magic!r}, wanted {_MAGIC!r}"
        )
    reader.position = 4
    version, tensor_count, metadata_count = (reader.scalar(code) for code in "IQQ")
    if version & 0xFFFF == 0:
        raise ModelFileError(f"[open_gguf] {path} is big-endian: only little-endian files are read")
    if version not in _VERSIONS:
        raise ModelFileError(
            f"[open_gguf] {path} is GGUF version {version}: supported are versions "
            f"{' and '.join(map(str, _VERSIONS))}"
        )
    metadata = _read_metadata(reader, metadata_count)
    if not isinstance(metadata.get("general.architecture"), str):
        raise ModelFileError(f"[open_gguf] {path}: the metadata has no general.architecture")
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(
            f"[open_gguf] {path}: general.alignment must be a power of two: got {alignment!r}"
        )
    entries = _read_directory(reader, tensor_count)
    data_offset = -(-reader.position // alignment) * alignment
    tensors = {
        name: _map_tensor(path, buffer, data_offset, alignment, name, *rest)
        for name, rest in entries.items()
    }
    return GGUFFile(path, version, alignment, data_offset, metadata, tensors)


def _read_metadata(reader: _Reader, count: int) -> dict[str, Any]:
    reader.need(count, 13)  # the shortest entry: an empty key, its type, one byte
    metadata: dict[str, Any] = {}
    for _ in range(count):
        reader.what = "the metadata"
        key = reader.string()
        reader.what = f"the metadata value {key!r}"
        if key in metadata:
            raise reader.fail(f"the metadata key {key!r} appears twice")
        metadata[key] = reader.value(reader.scalar("I"))
    return metadata


def _read_directory(reader: _Reader, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """name -> (shape in PyTorch's order, type number, offset in the data section)."""
    reader.what = "the tensor directory"
    reader.need(count, 24)
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = reader.string()
        rank = reader.scalar("I")
        if rank > 8:
            raise reader.fail(f"tensor {name!r} has {rank} dimensions")
        dimensions = tuple(reader.scalar("Q") for _ in range(rank))
        kind, offset = reader.scalar("I"), reader.scalar("Q")
        if name in entries:
            raise reader.fail(f"tensor {name!r} appears twice")
        entries[name] = (dimensions[::-1], kind, offset)
    return entries


def _map_tensor(
    path: Path,
    buffer: NDArray[np.uint8],
    data_offset: int,
    alignment: int,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    offset: int,
) -> GGUFTensor:
    where = f"[open_gguf] {path}: tensor {name!r}"
    fmt = FORMATS.get(kind)
    if fmt is None:
        raise ModelFileError(
            f"{where} has the unknown type number {kind}; supported types: "
            f"{', '.join(SUPPORTED_TYPES)}"
        )
    row = shape[-1] if shape else 1
    if row % fmt.block_elements:
        raise ModelFileError(
            f"{where} has rows of {row} values, no multiple of the {fmt.block_elements} values of "
            f"a {fmt.name} block"
        )
    if offset % alignment:
        raise ModelFileError(f"{where} starts at offset {offset}, not aligned to {alignment} bytes")
    size = fmt.row_bytes(math.prod(shape))
    begin = data_offset + offset
    if begin + size > buffer.size:
        raise ModelFileError(
            f"{where} ends at byte {begin + size}, but the file has {buffer.size} bytes: it is "
            "truncated. Download or copy it again."
        )
    return GGUFTensor(name, shape, fmt, offset, buffer[begin : begin + size], path)
