"""The GGUF reader against the gguf package, and damaged files."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ruda_finetune import ModelFileError
from ruda_finetune.loading import open_gguf


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


ARCHITECTURE = _pair("general.architecture", 8, _string("llama"))


def _tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        _string(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        + struct.pack("<IQ", kind, offset)
    )


def _file(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    pairs = [ARCHITECTURE] if pairs is None else pairs
    tensors = tensors or []
    counts = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def inner(raw: bytes) -> Path:
        path = tmp_path / "file.gguf"
        path.write_bytes(raw)
        return path

    return inner


def test_equals_the_gguf_package(tiny_model: Any, write_gguf: Any) -> None:
    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("x.u8", 200)
        writer.add_int8("x.i8", -3)
        writer.add_uint16("x.u16", 65535)
        writer.add_int16("x.i16", -32768)
        writer.add_int32("x.i32", -5)
        writer.add_uint64("x.u64", 2**63 + 1)
        writer.add_int64("x.i64", -(2**60))
        writer.add_float32("x.f32", 0.1)
        writer.add_float64("x.f64", 0.1)
        writer.add_bool("x.bool", True)
        writer.add_string("x.text", "ein Häuschen ☃")
        writer.add_array("x.strings", ["a", "", "漢字", " " * 40])
        writer.add_array("x.numbers", [1, -2, 3])
        writer.add_array("x.floats", [0.5, 0.25])

    path = write_gguf(tiny_model("llama"), "llama", metadata=metadata).path
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    assert (ours.version, ours.architecture, ours.alignment) == (3, "llama", 32)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == fields
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert mine.type_name == tensor.tensor_type.name
        assert np.array_equal(mine.data, np.asarray(tensor.data).reshape(-1).view(np.uint8))
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(mine.dequantize(), wanted)


def test_the_demo_file(smollm2: Path) -> None:
    """The whole file in well under 2 s of processor time; a sample against the gguf package."""
    start = time.process_time()
    file = open_gguf(smollm2)
    scratch = np.empty(max(int(np.prod(t.shape)) for t in file.tensors.values()), np.float32)
    for tensor in file.tensors.values():
        tensor.dequantize(scratch[: int(np.prod(tensor.shape))])
    assert time.process_time() - start < 2.0
    assert len(file.tensors) == 272
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    theirs = {t.name: t for t in gguf.GGUFReader(smollm2).tensors}
    for name in ("blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
        wanted = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
        assert np.array_equal(file.tensors[name].dequantize(), wanted)


def test_a_hand_made_file(write: Callable[[bytes], Path]) -> None:
    values = np.arange(6, dtype="<f4")
    file = open_gguf(write(_file(tensors=[_tensor("w", (2, 3), 0, 0)], data=values.tobytes())))
    assert file.tensors["w"].shape == (2, 3)
    assert file.tensors["w"].dequantize().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_nested_arrays(write: Callable[[bytes], Path]) -> None:
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<2I", 7, 8)
    pair = _pair("x", 9, struct.pack("<IQ", 9, 2) + inner + inner)
    assert open_gguf(write(_file([ARCHITECTURE, pair]))).metadata["x"] == [[7, 8], [7, 8]]


F32 = np.zeros(6, "<f4").tobytes()
DAMAGED = {
    "empty": (b"", "no GGUF file: it has 0 bytes"),
    "other format": (b"\x80\x02}q\x00." * 10, "no GGUF file: it begins with"),
    "version 1": (_file(version=1), "GGUF version 1: supported are versions 2 and 3"),
    "big-endian": (_file(version=3 << 24), "big-endian"),
    "no architecture": (_file([]), "no general.architecture"),
    "architecture of another type": (
        _file([_pair("general.architecture", 4, struct.pack("<I", 7))]),
        "no general.architecture",
    ),
    "too many values": (_file(counts=(0, 2**60)), "truncated or damaged"),
    "too many tensors": (_file(counts=(2**60, 1)), "truncated or damaged"),
    "a string longer than the file": (
        _file([ARCHITECTURE, _pair("x", 8, struct.pack("<Q", 2**62))]),
        "truncated or damaged.*metadata value 'x'",
    ),
    "an array longer than the file": (
        _file([ARCHITECTURE, _pair("x", 9, struct.pack("<IQ", 8, 2**61))]),
        "truncated or damaged.*metadata value 'x'",
    ),
    "not UTF-8": (_file([ARCHITECTURE, _pair("x", 8, _string(b"\xff\xfe"))]), "not UTF-8"),
    "a key twice": (_file([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' appears twice"),
    "an unknown value type": (_file([ARCHITECTURE, _pair("x", 77, b"")]), "metadata type 77"),
    "alignment 3": (
        _file([ARCHITECTURE, _pair("general.alignment", 4, struct.pack("<I", 3))]),
        "power of two: got 3",
    ),
    "a tensor twice": (
        _file(tensors=[_tensor("w", (6,), 0, 0)] * 2, data=F32),
        "tensor 'w' appears twice",
    ),
    "an unknown tensor type": (
        _file(tensors=[_tensor("w", (6,), 99, 0)], data=F32),
        "'w' has the unknown type number 99; supported types: F32, F16",
    ),
    "half a block": (
        _file(tensors=[_tensor("w", (3, 33), 2, 0)], data=F32 * 9),
        "rows of 33 values, no multiple of the 32",
    ),
    "misaligned": (
        _file(tensors=[_tensor("w", (1,), 0, 4)], data=F32),
        "starts at offset 4, not aligned to 32",
    ),
    "data cut off": (
        _file(tensors=[_tensor("w", (6,), 0, 0)], data=F32[:-1]),
        "'w' ends at byte .* it is truncated",
    ),
    "a tensor beyond the end": (
        _file(tensors=[_tensor("w", (6,), 0, 2**40)], data=F32),
        "'w' ends at byte .* it is truncated",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged(case: str, write: Callable[[bytes], Path]) -> None:
    raw, message = DAMAGED[case]
    path = write(raw)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.gguf is not a file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is not a file"):
        open_gguf(tmp_path)


def test_every_truncation_is_noticed(
    tiny_model: Any, write_gguf: Any, write: Callable[[bytes], Path]
) -> None:
    raw = write_gguf(tiny_model("llama"), "llama").path.read_bytes()
    header = len(raw) - sum(t.data.size for t in open_gguf(write(raw)).tensors.values())
    cuts = np.unique(np.linspace(0, header, 150).astype(int)).tolist()
    for cut in [*cuts, len(raw) // 2, len(raw) - 33]:
        with pytest.raises(ModelFileError):
            open_gguf(write(raw[:cut]))


def test_a_type_that_cannot_be_read(write: Callable[[bytes], Path]) -> None:
    """The file opens, so that it can be looked at; reading the tensor names the supported types."""
    raw = _file(tensors=[_tensor("w", (1, 256), 16, 0)], data=b"\0" * 66)
    tensor = open_gguf(write(raw)).tensors["w"]
    assert tensor.type_name == "IQ2_XXS"
    with pytest.raises(ModelFileError, match=r"'w' is stored as IQ2_XXS.*supported types: F32"):
        tensor.dequantize()
