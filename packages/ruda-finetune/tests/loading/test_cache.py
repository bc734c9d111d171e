"""The cache of packed weights and hashes: a hit equals the file, and nothing stops a load."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ruda_finetune import cache_files
from ruda_finetune.errors import ModelFileError
from ruda_finetune.loading import hashes, load_model
from ruda_finetune.loading.cache import CacheKey, read_packed, wait_for_writers
from ruda_runtime import cachefiles


@pytest.fixture(autouse=True)
def warnings_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachefiles, "_warned", set())


@pytest.fixture
def model_file(tiny_model: Any, write_gguf: Any) -> Path:
    return Path(write_gguf(tiny_model("llama"), "llama").path)


def load(path: Path, **options: Any) -> Any:
    loaded = load_model(path, device="cpu", **options)
    wait_for_writers()
    return loaded


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "nf4").glob("*"))


def same_weights(left: Any, right: Any) -> bool:
    first, second = left.model.state_dict(), right.model.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_a_hit_equals_the_file(model_file: Path, own_cache: Path) -> None:
    fresh, again = load(model_file), load(model_file)
    assert not fresh.report.cached and again.report.cached
    assert same_weights(fresh, again)
    assert fresh.report.quantized == again.report.quantized
    assert fresh.source == again.source
    assert len(entries(own_cache)) == 1


def test_directories_are_cached_too(tiny_model: Any, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    tiny_model("llama").save_pretrained(directory, max_shard_size="200KB")
    assert len(list(directory.glob("*.safetensors"))) > 1
    fresh, again = load(directory), load(directory)
    assert again.report.cached and same_weights(fresh, again)


@pytest.mark.parametrize(
    "options", [{"block_size": 32}, {"target_modules": ["q_proj", "v_proj"]}], ids=str
)
def test_what_the_weights_depend_on_is_in_the_key(
    model_file: Path, own_cache: Path, options: dict[str, Any]
) -> None:
    load(model_file)
    other = load(model_file, **options)
    assert not other.report.cached
    assert len(entries(own_cache)) == 2
    assert same_weights(other, load(model_file, **options, cache=False))


def test_the_dtype_and_the_order_of_targets_are_not(model_file: Path, own_cache: Path) -> None:
    load(model_file, target_modules=["q_proj", "v_proj"])
    again = load(model_file, target_modules=["v_proj", "q_proj"], dtype=torch.bfloat16)
    assert again.report.cached
    assert again.model.model.embed_tokens.weight.dtype == torch.bfloat16


def test_switched_off_nothing_is_read_or_written(model_file: Path, own_cache: Path) -> None:
    assert not load(model_file, cache=False).report.cached
    assert not list(own_cache.iterdir())
    load(model_file)
    assert not load(model_file, cache=False).report.cached


def test_dense_models_have_no_entry(model_file: Path, own_cache: Path) -> None:
    load(model_file, quantize="none")
    assert not entries(own_cache)


def cut(data: bytes) -> bytes:
    return data[:-5]


def flip(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def longer(data: bytes) -> bytes:
    return data + b"\0"


def no_header(data: bytes) -> bytes:
    return struct.pack("<Q", 1 << 60) + data[8:]


def header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        values = json.loads(data[8 : 8 + length])
        change(values)
        text = json.dumps(values).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return damage


def tensor_of(values: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = next(v for n, v in values.items() if n.endswith(".packed"))
    return entry


DAMAGES = {
    "empty": lambda data: b"",
    "short": lambda data: data[:4],
    "truncated": cut,
    "one bit": flip,
    "longer": longer,
    "header length": no_header,
    "not json": lambda data: struct.pack("<Q", 9) + b"{not json" + data,
    "a list": lambda data: struct.pack("<Q", 2) + b"[]",
    "other source": header(lambda v: v["__metadata__"].update(source_sha256="0" * 64)),
    "other version": header(lambda v: v["__metadata__"].update({"ruda-finetune": "0.0.1"})),
    "wrong hash": header(lambda v: v["__metadata__"].update(data_sha256="0" * 64)),
    "no hash": header(lambda v: v["__metadata__"].pop("data_sha256")),
    "dtype": header(lambda v: tensor_of(v).update(dtype="F64")),
    "shape": header(lambda v: tensor_of(v).update(shape=[3])),
    "negative": header(lambda v: tensor_of(v).update(data_offsets=[-4, -1])),
    "offsets": header(lambda v: tensor_of(v).update(data_offsets="ab")),
    "no tensors": lambda data: header(lambda v: [v.pop(n) for n in list(v) if n != "__metadata__"])(
        data
    ),
    "half a pair": header(lambda v: v.pop(next(n for n in v if n.endswith(".scales")))),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_foreign_entry_is_a_miss(
    model_file: Path, own_cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    fresh = load(model_file)
    (entry,) = entries(own_cache)
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    again = load(model_file)
    assert not again.report.cached and same_weights(fresh, again)
    assert entry.read_bytes() == good  # written anew


def test_an_entry_of_another_model_is_a_miss(
    tiny_model: Any, write_gguf: Any, tiny_config: Any, own_cache: Path, model_file: Path
) -> None:
    """Right key, right hash, but other layers: the names and sizes decide."""
    load(model_file)
    (entry,) = entries(own_cache)

    def rename(values: dict[str, Any]) -> None:
        for name in [n for n in values if n.startswith("model.layers.0.")]:
            values[name.replace("layers.0", "layers.9")] = values.pop(name)

    entry.write_bytes(header(rename)(entry.read_bytes()))
    assert not load(model_file).report.cached


def test_an_entry_that_is_a_folder_is_a_miss(model_file: Path, own_cache: Path) -> None:
    load(model_file)
    (entry,) = entries(own_cache)
    entry.unlink()
    entry.mkdir()
    with pytest.warns(cache_files.CacheWarning, match="cannot be written"):
        assert not load(model_file).report.cached


@pytest.mark.parametrize("below", ["", "nf4", "hashes"])
def test_a_file_where_the_cache_should_be_is_one_warning(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    place = tmp_path / "place"
    if below:
        place.mkdir()
    (place / below if below else place).write_text("in the way")
    os.utime(model_file, (1, 1))
    monkeypatch.setattr(hashes, "_SETTLED_SECONDS", -1.0)
    monkeypatch.setenv("RUDA_CACHE_DIR", str(place))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = [load(model_file) for _ in range(2)]
    told = [w for w in caught if issubclass(w.category, cache_files.CacheWarning)]
    assert len(told) == 1 and str(place) in str(told[0].message)
    assert same_weights(*loaded)


def test_a_full_disk_leaves_no_file(
    model_file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(cache_files.CacheWarning, match="No space left"):
        load(model_file)
    assert not entries(own_cache)


def test_without_a_home_there_is_no_cache(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUDA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.warns(cache_files.CacheWarning, match="no home directory"):
        assert not load(model_file).report.cached


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"RUDA_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"RUDA_CACHE_DIR": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/ruda"),
        ({"RUDA_CACHE_DIR": "", "XDG_CACHE_HOME": "b", "HOME": "/c"}, "/c/.cache/ruda"),
    ],
)
def test_where_the_cache_is(
    environment: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_files.cache_directory() == Path(wanted)


def test_a_model_changed_in_place_is_another_model(
    model_file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same path, size, inode and modification time: the change time tells."""
    monkeypatch.setattr(hashes, "_SETTLED_SECONDS", -1.0)  # remember at once
    first = load(model_file)
    before = model_file.stat()
    data = bytearray(model_file.read_bytes())
    data[-1] ^= 1
    with model_file.open("r+b") as file:
        file.write(data)
    os.utime(model_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model_file.stat().st_mtime_ns == before.st_mtime_ns
    second = load(model_file)
    assert second.source.sha256 != first.source.sha256
    assert not second.report.cached


def test_a_hash_is_remembered_and_a_copy_is_hashed(
    model_file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hashes, "_SETTLED_SECONDS", -1.0)
    digest = hashes.file_sha256(model_file, remember=True)
    real, calls = hashes.hashlib.file_digest, []

    def count(handle: Any, name: str) -> Any:
        calls.append(handle.name)
        return real(handle, name)

    monkeypatch.setattr(hashes.hashlib, "file_digest", count)
    assert hashes.file_sha256(model_file, remember=True) == digest and not calls
    copy = shutil.copy(model_file, tmp_path / "copy.gguf")
    assert hashes.file_sha256(Path(copy), remember=True) == digest and len(calls) == 1
    (stored, *_) = sorted((own_cache / "hashes").iterdir())
    for text in ("", "{}", "[]", '{"sha256": "zz"}', '{"sha256": 5}'):
        stored.write_text(text)
        assert hashes.file_sha256(model_file, remember=True) == digest


def test_a_fresh_file_is_not_remembered(model_file: Path, own_cache: Path) -> None:
    os.utime(model_file)
    hashes.file_sha256(model_file, remember=True)
    assert not (own_cache / "hashes").exists()


def test_a_file_that_changes_while_it_is_read_is_an_error(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hashes.hashlib.file_digest

    def meanwhile(handle: Any, name: str) -> Any:
        found = real(handle, name)
        os.utime(model_file, (1, 1))
        return found

    monkeypatch.setattr(hashes.hashlib, "file_digest", meanwhile)
    with pytest.raises(ModelFileError, match="was changed while it was read"):
        load(model_file)


def test_a_vanished_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gone\.gguf cannot be read"):
        hashes.file_sha256(tmp_path / "gone.gguf")


RACE = """
import sys
from ruda_finetune.loading import load_model
from ruda_finetune.loading.cache import wait_for_writers
load_model(sys.argv[1], device="cpu"); wait_for_writers()
"""


def test_two_processes_may_race(model_file: Path, own_cache: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", RACE, str(model_file)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert [path.suffix for path in entries(own_cache)] == [".safetensors"]
    assert load(model_file).report.cached


def test_list_and_clear(model_file: Path, own_cache: Path) -> None:
    load(model_file)
    (entry,) = cache_files.list_entries()
    assert entry.name == model_file.name and "block 64" in entry.detail
    (own_cache / "nf4" / "notes.txt").write_text("somebody's own")
    (own_cache / "nf4" / "x.123.tmp").write_text("left behind")
    (own_cache / "nf4" / "bad.safetensors").write_text("?")
    assert {e.name for e in cache_files.list_entries()} == {model_file.name, ""}
    count, freed = cache_files.clear()
    assert count == 2 and freed > entry.nbytes
    assert [path.name for path in entries(own_cache)] == ["notes.txt"]
    assert cache_files.list_entries() == [] and cache_files.clear() == (0, 0)


def test_old_temporary_files_go_at_the_next_write(model_file: Path, own_cache: Path) -> None:
    (own_cache / "nf4").mkdir()
    old, new = own_cache / "nf4" / "a.1.tmp", own_cache / "nf4" / "b.1.tmp"
    for path in (old, new):
        path.write_text("x")
    os.utime(old, (1, 1))
    load(model_file)
    assert not old.exists() and new.exists()


def test_entries_are_plain_safetensors(model_file: Path, own_cache: Path) -> None:
    from safetensors.torch import load_file

    load(model_file)
    (entry,) = entries(own_cache)
    found = load_file(entry)
    key = CacheKey.of(hashes.file_sha256(model_file), 64, "all-linear", model_file.name)
    packed = read_packed(key)
    assert packed is not None and 2 * len(packed) == len(found)
    for name, pair in packed.items():
        for part, tensor in zip(("packed", "scales"), pair):
            assert torch.equal(found[f"{name}.{part}"], tensor)
