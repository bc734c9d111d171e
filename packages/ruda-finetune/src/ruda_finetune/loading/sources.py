"""Where weights come from: tensors by state-dict name, read one at a time.

A source knows the name, shape and stored type of every tensor before any is read, so that a model
and a file are compared whole before anything changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

#: Values in one piece of a streamed tensor: 4 MB as float32.
PIECE_ELEMENTS = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: shape in PyTorch's order, the stored type's name, its file."""

    shape: tuple[int, ...]
    stored: str
    floating: bool
    file: Path


class WeightSource(Protocol):
    """Tensors by state-dict name."""

    @property
    def path(self) -> Path:
        """The file or directory, for messages."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Every tensor by state-dict name, in the order in which reading is cheapest."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the weights."""

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """The values in row-major order as flat CPU tensors; each is valid until the next."""

    def read(self, name: str) -> torch.Tensor:
        """The whole tensor on the CPU in float32, float16 or bfloat16 (read-only)."""


def fill(destination: torch.Tensor, pieces: Iterator[torch.Tensor]) -> None:
    """Copy consecutive pieces into a contiguous tensor of any device and dtype."""
    flat = destination.view(-1)
    position = 0
    for piece in pieces:
        flat[position : position + piece.numel()].copy_(piece)
        position += piece.numel()
    assert position == flat.numel()


def is_finite(piece: torch.Tensor) -> bool:
    """Whether a tensor has neither NaN nor infinite values; anything but floats is finite."""
    if not piece.is_floating_point() or piece.numel() == 0:
        return True
    low, high = torch.aminmax(piece)  # both carry NaN through
    return bool(torch.isfinite(low) & torch.isfinite(high))
