"""A GGUF file as a source of weights under transformers' names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import ModelFileError
from ..sources import PIECE_ELEMENTS, Entry, fill
from .architectures import module_names, row_order, value_offset
from .container import GGUFFile, GGUFTensor
from .quants import dequantize

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class GGUFSource:
    """The tensors of a GGUF file, dequantised to float32 with llama.cpp's conversions undone.

    Raises `ModelFileError` for tensors the architecture has no place for and for stored types that
    cannot be read, before any tensor is read.
    """

    def __init__(self, file: GGUFFile, config: PretrainedConfig) -> None:
        self._file = file
        self._config = config
        self._names, self.derived = module_names(file)
        # one buffer for all pieces: fresh pages cost more than decoding into them
        self._scratch = np.empty(PIECE_ELEMENTS, np.float32)
        self._entries: dict[str, Entry] = {}
        for target, name in self._names.items():
            tensor = file.tensors[name]
            tensor.require_supported()
            self._check_rows(tensor)
            self._entries[target] = Entry(tensor.shape, tensor.type_name, True, file.path)

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def entries(self) -> dict[str, Entry]:
        return self._entries

    @property
    def files(self) -> tuple[Path, ...]:
        return (self._file.path,)

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        tensor = self._file.tensors[self._names[name]]
        data = self._ordered(tensor)
        offset = value_offset(self._file, tensor.name)
        blocks = max(1, PIECE_ELEMENTS // tensor.format.block_elements)
        step = blocks * tensor.format.block_bytes
        for start in range(0, data.size, step):
            part = data[start : start + step]
            count = tensor.format.block_elements * (part.size // tensor.format.block_bytes)
            values = self._scratch[:count]
            dequantize(part, tensor.type_name, values)
            if offset:
                values -= np.float32(offset)
            yield torch.from_numpy(values)

    def read(self, name: str) -> torch.Tensor:
        whole = torch.empty(self._entries[name].shape, dtype=torch.float32)
        fill(whole, self.pieces(name))
        return whole

    def _ordered(self, tensor: GGUFTensor) -> np.ndarray:
        """The stored bytes with the rows in transformers' order; rows are whole blocks."""
        order = row_order(self._file, tensor.name, self._config)
        if order is None:
            return tensor.data
        rows = tensor.data.reshape(tensor.shape[0], -1)
        return rows[order].reshape(-1)

    def _check_rows(self, tensor: GGUFTensor) -> None:
        order = row_order(self._file, tensor.name, self._config)
        if order is not None and tensor.shape[:1] != order.shape:
            raise ModelFileError(
                f"[load_gguf] {self._file.path}: tensor {tensor.name!r} has shape "
                f"{list(tensor.shape)}, but the metadata's heads make {order.size} rows"
            )
