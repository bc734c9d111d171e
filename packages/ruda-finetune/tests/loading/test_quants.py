"""Block formats against the gguf package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ruda_finetune.loading.gguf import SUPPORTED_TYPES, dequantize
from ruda_finetune.loading.gguf.quants import FORMATS


def test_every_promised_type_is_read() -> None:
    assert set(SUPPORTED_TYPES) == {
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
    }


def test_formats_are_those_of_the_gguf_package() -> None:
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        ours = FORMATS.get(int(kind))
        assert ours is not None, kind
        assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, elements, size)


@pytest.mark.parametrize("name", SUPPORTED_TYPES)
@pytest.mark.parametrize("blocks", [1, 7, 5000])
def test_bits_of_the_gguf_package(name: str, blocks: int) -> None:
    """Every bit pattern may stand in a file, NaN and infinite scales included."""
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(blocks).integers(0, 256, (blocks, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data, kind).reshape(-1)
        got = dequantize(data.reshape(-1), name)
    assert got.dtype == np.float32
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("name", SUPPORTED_TYPES)
def test_pieces_are_the_whole(name: str) -> None:
    """More values than one piece holds, written into a given buffer."""
    fmt = next(f for f in FORMATS.values() if f.name == name)
    blocks = 1_200_000 // fmt.block_elements
    data = np.random.default_rng(0).integers(0, 120, blocks * fmt.block_bytes, dtype=np.uint8)
    out = np.full(blocks * fmt.block_elements, np.nan, np.float32)
    with np.errstate(all="ignore"):
        assert dequantize(data, name, out).base is out or dequantize(data, name, out) is out
        middle = (blocks // 2) * fmt.block_bytes
        half = dequantize(data[middle:], name)
    assert np.array_equal(
        out[(blocks // 2) * fmt.block_elements :].view(np.uint32), half.view(np.uint32)
    )


def test_wrong_sizes() -> None:
    with pytest.raises(ValueError, match="whole blocks of 20 bytes: got 21"):
        dequantize(np.zeros(21, np.uint8), "Q4_1")
    with pytest.raises(ValueError, match="32 values: got 31"):
        dequantize(np.zeros(20, np.uint8), "Q4_1", np.zeros(31, np.float32))
