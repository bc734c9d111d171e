"""The block formats of GGUF tensors and their values as float32, in NumPy.

A quantised row is a sequence of blocks of `block_elements` values in `block_bytes` bytes. Every
decoder gets blocks `[n, block_bytes]` uint8 and writes float32 `[n, block_elements]` in the order
of multiplications and additions of ggml's own reference code, so that results are equal bit for
bit. Decoding runs in pieces that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Values decoded at a time: 2 MB of float32, so that a block's few passes stay in the L2/L3 cache.
_PIECE_ELEMENTS = 512 * 1024


@dataclass(frozen=True)
class BlockFormat:
    """One ggml tensor type: its number in the file and the size of its blocks."""

    id: int
    name: str
    block_elements: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` values (a multiple of the block)."""
        return elements // self.block_elements * self.block_bytes


def _formats(*rows: tuple[int, str, int, int]) -> dict[int, BlockFormat]:
    return {row[0]: BlockFormat(*row) for row in rows}


# Every type of the GGUF specification is known by name and size, so that a file can be listed and
# an error can name what it holds; `_DECODERS` says which of them can be read.
FORMATS: dict[int, BlockFormat] = _formats(
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)


def _half(blocks: Bytes, start: int) -> Floats:
    """One float16 of every block as float32, [n, 1]."""
    return blocks[:, start : start + 2].view(np.float16).astype(np.float32)


def _f32(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks.view(np.float32)


def _f16(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks.view(np.float16)


def _bf16(blocks: Bytes, out: Floats) -> None:
    bits = out.view(np.uint32)
    bits[...] = blocks.view(np.uint16)
    np.left_shift(bits, 16, out=bits)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    codes = blocks[:, 2:]
    out[:, :16] = codes & 15
    out[:, 16:] = codes >> 4
    out -= np.float32(8)
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    codes = blocks[:, 4:]
    out[:, :16] = codes & 15
    out[:, 16:] = codes >> 4
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _five_bits(low: Bytes, high: Bytes, out: Floats) -> None:
    """`low` [n, 16]: two nibbles a byte; `high` [n, 4]: the fifth bits, little-endian."""
    fifth = np.unpackbits(high, axis=1, bitorder="little")  # [n, 32]
    np.left_shift(fifth, 4, out=fifth)
    out[:, :16] = (low & 15) | fifth[:, :16]
    out[:, 16:] = (low >> 4) | fifth[:, 16:]


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _five_bits(blocks[:, 6:], blocks[:, 2:6], out)
    out -= np.float32(16)
    out *= _half(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _five_bits(blocks[:, 8:], blocks[:, 4:8], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """The 6-bit scales and minima of Q4_K and Q5_K, times d and dmin: both [n, 8, 1]."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    n = blocks.shape[0]
    scales = np.empty((n, 8), np.uint8)
    minima = np.empty((n, 8), np.uint8)
    scales[:, :4] = low & 63
    scales[:, 4:] = (high & 15) | ((low >> 2) & 48)
    minima[:, :4] = middle & 63
    minima[:, 4:] = (high >> 4) | ((middle >> 2) & 48)
    return (
        (_half(blocks, 0) * scales.astype(np.float32))[:, :, None],
        (_half(blocks, 2) * minima.astype(np.float32))[:, :, None],
    )


def _q4_k(blocks: Bytes, out: Floats) -> None:
    n = blocks.shape[0]
    scales, minima = _scales_and_minima(blocks)
    codes = blocks[:, 16:].reshape(n, 4, 32)
    pairs = out.reshape(n, 4, 2, 32)
    pairs[:, :, 0] = codes & 15
    pairs[:, :, 1] = codes >> 4
    groups = out.reshape(n, 8, 32)
    groups *= scales
    groups -= minima


def _q5_k(blocks: Bytes, out: Floats) -> None:
    n = blocks.shape[0]
    scales, minima = _scales_and_minima(blocks)
    fifth = blocks[:, 16:48]  # bit j of byte l belongs to value l of group j
    codes = blocks[:, 48:].reshape(n, 4, 32)
    groups = out.reshape(n, 8, 32)
    for pair in range(4):
        low, high = 2 * pair, 2 * pair + 1
        groups[:, low] = (codes[:, pair] & 15) | ((fifth >> low & 1) << 4)
        groups[:, high] = (codes[:, pair] >> 4) | ((fifth >> high & 1) << 4)
    groups *= scales
    groups -= minima


def _q6_k(blocks: Bytes, out: Floats) -> None:
    n = blocks.shape[0]
    low = blocks[:, :128].reshape(n, 2, 2, 32)  # [half, first or second 32 bytes]
    high = blocks[:, 128:192].reshape(n, 2, 32)
    scales = blocks[:, 208:].view(np.float16).astype(np.float32) * blocks[:, 192:208].view(
        np.int8
    ).astype(np.float32)
    quarters = out.reshape(n, 2, 4, 32)
    for quarter in range(4):
        both = low[:, :, quarter % 2]
        nibbles = both & 15 if quarter < 2 else both >> 4
        quarters[:, :, quarter] = nibbles | ((high >> 2 * quarter & 3) << 4)
    out -= np.float32(32)
    groups = out.reshape(n, 16, 16)
    groups *= scales[:, :, None]


_DECODERS: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}

#: Names of the tensor types whose values can be read.
SUPPORTED_TYPES: tuple[str, ...] = tuple(_DECODERS)


def dequantize(data: Bytes, type_name: str, out: Floats | None = None) -> Floats:
    """The float32 values of whole blocks, flat.

    `data` is a contiguous uint8 array of whole blocks of `type_name` (one of `SUPPORTED_TYPES`);
    `out`, if given, a contiguous float32 array of as many values. Raises `KeyError` for another
    type and `ValueError` for a partial block or an `out` of another size.
    """
    decode = _DECODERS[type_name]
    fmt = next(f for f in FORMATS.values() if f.name == type_name)
    blocks, rest = divmod(data.size, fmt.block_bytes)
    if rest:
        raise ValueError(
            f"[dequantize] {type_name} data must be whole blocks of {fmt.block_bytes} bytes: "
            f"got {data.size} bytes"
        )
    elements = blocks * fmt.block_elements
    if out is None:
        out = np.empty(elements, np.float32)
    elif out.size != elements or not out.flags.c_contiguous:
        raise ValueError(
            f"[dequantize] out must be contiguous with {elements} values: got {out.size}"
        )
    source = data.reshape(blocks, fmt.block_bytes)
    result = out.reshape(blocks, fmt.block_elements)
    step = max(1, _PIECE_ELEMENTS // fmt.block_elements)
    for start in range(0, blocks, step):
        decode(source[start : start + step], result[start : start + step])
    return out.reshape(-1)
