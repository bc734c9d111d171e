"""The shape of a quantised weight."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from ..errors import Nf4Error


@dataclass(frozen=True)
class Nf4Layout:
    """A weight ``[out_features, in_features]`` in blocks of ``block_size`` flat values.

    Raises:
        Nf4Error: a negative size, or a block size that is not positive and even.
    """

    out_features: int
    in_features: int
    block_size: int = 64

    def __post_init__(self) -> None:
        for name in ("out_features", "in_features"):
            size = operator.index(getattr(self, name))
            if size < 0:
                raise Nf4Error(f"[nf4] {name}: got {size}, wanted 0 or more")
        block = operator.index(self.block_size)
        if block <= 0 or block % 2:
            raise Nf4Error(f"[nf4] block_size: got {block}, wanted a positive even number")

    @property
    def count(self) -> int:
        """Values of the weight."""
        return self.out_features * self.in_features

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed codes."""
        return (self.count + 1) // 2

    @property
    def blocks(self) -> int:
        """Number of scales."""
        return -(-self.count // self.block_size)
