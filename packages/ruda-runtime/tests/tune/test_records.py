"""Records: what they serve for, how long, how many, and what a damaged file is."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import ruda_runtime as rr
from ruda_runtime import cachefiles, tune
from ruda_runtime.tune.records import canonical, digest

from .bench import DAY, Bench, only_record


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachefiles, "_warned", set())


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def tuned(folder: Path) -> tuple[Bench, Path]:
    """A folder with one record, whose choice is "fast"."""
    bench = Bench(plain=100, fast=50)
    assert bench.choose(bench.tuner(folder)) == "fast"
    (file,) = files(folder)
    return bench, file


def retunes(bench: Bench, folder: Path, **policy: Any) -> bool:
    """Whether a new process would measure again."""
    bench.runs.clear()
    bench.choose(bench.tuner(folder, **policy))
    return bool(bench.runs)


def test_another_process_uses_the_record(tmp_path: Path) -> None:
    bench, file = tuned(tmp_path)
    bench.costs = {"plain": 1, "fast": 1000}
    other = bench.tuner(tmp_path)
    bench.runs.clear()
    assert bench.choose(other) == bench.choose(other) == "fast"
    assert bench.runs == []
    assert other.statistics() == {"memory": 1, "disk": 1, "tuned": 0, "busy": 0, "reference": 0}
    record = only_record(other)
    assert record.measured == {"fast": tune.Measurement(2.0, 0.0)} and record.created == bench.now
    assert file.name == digest(canonical(record.key)) + ".json"
    assert [path.suffix for path in files(tmp_path)] == [".json"]


def test_that_the_reference_is_best_is_kept_too(tmp_path: Path) -> None:
    bench = Bench(plain=100, slow=200)
    assert bench.choose(bench.tuner(tmp_path)) == "plain"
    assert not retunes(bench, tmp_path)


def test_the_modes(tmp_path: Path) -> None:
    bench, _ = tuned(tmp_path)
    bench.runs.clear()
    assert bench.choose(bench.tuner(tmp_path, "cache_only")) == "fast"
    assert bench.choose(bench.tuner(tmp_path, "disabled")) == "plain"
    empty = tmp_path / "empty"
    tuner = bench.tuner(empty, "cache_only")
    assert bench.choose(tuner) == bench.choose(tuner) == "plain"
    assert tuner.statistics()["reference"] == 2 and tuner.records() == []
    assert bench.runs == [] and not empty.exists()


def test_cache_only_looks_for_a_file_once(tmp_path: Path) -> None:
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner(tmp_path, "cache_only")
    assert bench.choose(tuner) == "plain"
    assert bench.choose(bench.tuner(tmp_path)) == "fast"  # another process has written it
    assert bench.choose(tuner) == "plain"
    tuner.forget()
    assert bench.choose(tuner) == "fast"


def test_disabled_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = tuned(tmp_path)
    tuner = bench.tuner(tmp_path, "disabled")
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("a file was opened"))
    assert bench.choose(tuner) == "plain"


def test_records_expire(tmp_path: Path) -> None:
    bench, file = tuned(tmp_path)
    tuner = bench.tuner(tmp_path)
    begin = bench.now
    bench.now = begin + 7 * DAY
    bench.costs = {"plain": 100, "fast": 200}
    assert bench.choose(tuner) == "fast"
    bench.now += 1.0  # in memory as well
    assert bench.choose(tuner) == "plain"
    assert bench.choose(bench.tuner(tmp_path)) == "plain"  # the new record has replaced the file
    assert files(tmp_path) == [file]
    bench.now = begin  # a clock that was set back: records from the future are not trusted
    assert retunes(bench, tmp_path)


def test_an_expired_file_is_removed(tmp_path: Path) -> None:
    bench, _ = tuned(tmp_path)
    bench.now += 7 * DAY + 1
    assert bench.choose(bench.tuner(tmp_path, "cache_only")) == "plain"
    assert files(tmp_path) == []


def test_the_key_is_everything_that_matters(tmp_path: Path, threads: Any) -> None:
    bench, _ = tuned(tmp_path)
    assert not retunes(bench, tmp_path)
    assert not retunes(bench, tmp_path, max_records=5, max_age_seconds=DAY)
    assert retunes(bench, tmp_path, relative_tolerance=1e-6)
    assert retunes(bench, tmp_path, samples=9)
    tuner = bench.tuner(tmp_path)
    bench.choose(tuner)
    bench.runs.clear()
    threads(rr.get_num_threads() + 1)
    assert bench.choose(tuner) == "fast" and bench.runs  # the same tuner, in memory as well
    assert not retunes(bench, tmp_path)


@pytest.mark.parametrize("tag", ["DRIVER", "BUILD", "CONTEXT"])
def test_tags_are_part_of_the_environment(tmp_path: Path, tag: str) -> None:
    device = rr.device_of()
    plain = tune.fingerprint(device, {})
    tagged = tune.fingerprint(device, {f"RUDA_AUTOTUNE_{tag}_TAG": "a"})
    assert {name for name in plain if plain[name] != tagged[name]} == {f"{tag.lower()}_tag"}
    bench, _ = tuned(tmp_path)
    bench.runs.clear()
    policy = tune.Policy()
    tuner = tune.Tuner(policy, "explore", timer=bench, folder=tmp_path, now=lambda: bench.now,
                       environment={f"RUDA_AUTOTUNE_{tag}_TAG": "a"})  # fmt: skip
    bench.choose(tuner)
    assert bench.runs and len(files(tmp_path)) == 2


def test_the_fingerprint_names_the_environment() -> None:
    found = tune.fingerprint(rr.device_of(), {})
    assert found["packages"]["ruda-runtime"] == rr.__version__
    assert found["target"] == "host" and found["device"] == rr.devices()[0].name
    assert found["threads"] == rr.get_num_threads()
    assert set(found) >= {"driver", "cpu_features", "compute_capability", "python", "machine"}
    assert json.loads(canonical(found)) == found


def _damage(file: Path) -> dict[str, bytes]:
    whole = file.read_bytes()
    outer = json.loads(whole)
    changed = json.loads(whole)
    changed["record"]["choice"] = "plain"
    alien = json.loads(whole)
    alien["record"]["choice"] = "rm"
    alien["checksum"] = digest(canonical(alien["record"]))
    foreign = json.loads(whole)
    foreign["record"]["key"]["key"]["size"] = 2
    foreign["checksum"] = digest(canonical(foreign["record"]))
    newer = json.loads(whole)
    newer["record"]["format"] = 99
    newer["checksum"] = digest(canonical(newer["record"]))
    lacking = {name: outer["record"][name] for name in ("key", "choice", "format")}
    return {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "one byte": whole[:-20] + b"x" + whole[-19:],
        "no JSON": b"\x00\xff" * 50,
        "another value": b"[1, 2]",
        "a number": b"7",
        "nested": b"[" * 100_000,
        "changed": json.dumps(changed).encode(),
        "a choice that is none": json.dumps(alien).encode(),
        "another key in the right file": json.dumps(foreign).encode(),
        "another format": json.dumps(newer).encode(),
        "lacking": json.dumps({"checksum": digest(canonical(lacking)), "record": lacking}).encode(),
        "too long": whole + b"x" * (2 << 20),
    }


def test_a_damaged_or_foreign_file_is_a_miss(tmp_path: Path) -> None:
    bench, file = tuned(tmp_path)
    for what, data in _damage(file).items():
        file.write_bytes(data)
        assert bench.choose(bench.tuner(tmp_path, "cache_only")) == "plain", what
        assert retunes(bench, tmp_path), what
        assert not retunes(bench, tmp_path), what  # and is replaced by a good one
    file.unlink()
    file.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert retunes(bench, tmp_path)


def test_memory_and_disk_are_bounded(tmp_path: Path) -> None:
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner(tmp_path, max_records=3)
    for size in range(5):
        bench.choose(tuner, key=size)
        for file in files(tmp_path):  # each round is later than the one before
            os.utime(file, (file.stat().st_mtime - 10, file.stat().st_mtime - 10))
    assert [record.key["key"]["size"] for record in tuner.records()] == [2, 3, 4]
    assert len(files(tmp_path)) == 3
    kept = [
        json.loads(file.read_text())["record"]["key"]["key"]["size"] for file in files(tmp_path)
    ]
    assert sorted(kept) == [2, 3, 4]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    names = ["notes.txt", "a.json", "0" * 64 + ".jsonx"]
    for name in names:
        (tmp_path / name).write_text("{}")
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner(tmp_path, max_records=1)
    for size in range(3):
        bench.choose(tuner, key=size)
    assert {file.name for file in files(tmp_path)} >= set(names)
    assert len(files(tmp_path)) == len(names) + 1


@pytest.mark.parametrize("failure", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_a_folder_that_cannot_be_written_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr("ruda_runtime.tune.records.write_atomically", refuse)
    bench = Bench(plain=100, fast=50)
    tuner = bench.tuner(tmp_path)
    with pytest.warns(cachefiles.CacheWarning) as caught:
        assert bench.choose(tuner, key=1) == bench.choose(tuner, key=2) == "fast"
        assert bench.choose(bench.tuner(tmp_path), key=3) == "fast"
    assert len(caught) == 1
    assert os.strerror(failure) in str(caught[0].message) and "RUDA_CACHE_DIR" in str(
        caught[0].message
    )
    bench.runs.clear()
    assert bench.choose(tuner, key=1) == "fast" and bench.runs == []  # in memory
    assert tuner.folder is None


def test_a_folder_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench = Bench(plain=100, fast=50)
    with pytest.warns(cachefiles.CacheWarning, match="going on with tuning records in memory"):
        assert bench.choose(bench.tuner(tmp_path / "file" / "tuning")) == "fast"


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_an_error_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    bench, file = tuned(tmp_path)
    before = file.read_bytes()

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(step, fail)
    bench.now += 8 * DAY
    with pytest.warns(cachefiles.CacheWarning):
        bench.choose(bench.tuner(tmp_path / "other"))
    with pytest.raises(OSError, match="no space"):
        cachefiles.write_atomically(file, b"new")
    assert files(tmp_path) == [file, tmp_path / "other"] and file.read_bytes() == before
    assert files(tmp_path / "other") == []


_KILLED = """
import os, sys
from pathlib import Path
from ruda_runtime import cachefiles
stop = sys.argv[2]
if stop == "before":
    os.fsync = lambda number: os.kill(os.getpid(), 9)
else:
    Path.replace = lambda self, other: os.kill(os.getpid(), 9)
cachefiles.write_atomically(Path(sys.argv[1]), b"half of it")
"""


@pytest.mark.parametrize("stop", ["before", "after"])
def test_a_process_killed_while_writing(tmp_path: Path, stop: str) -> None:
    """The old record stays whole; what is left behind is removed an hour later."""
    bench, file = tuned(tmp_path)
    before = file.read_bytes()
    done = subprocess.run([sys.executable, "-c", _KILLED, str(file), stop], timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = (path for path in files(tmp_path) if path != file)
    assert left.suffix == ".tmp" and file.read_bytes() == before
    assert not retunes(bench, tmp_path)
    bench.choose(bench.tuner(tmp_path), key="next")
    assert left.exists()  # it could be another process's, still at work
    old = time.time() - 2 * cachefiles.STALE_SECONDS
    os.utime(left, (old, old))
    bench.choose(bench.tuner(tmp_path), key="and next")
    assert not left.exists()


def test_the_folder(tmp_path: Path) -> None:
    environment = {"RUDA_CACHE_DIR": str(tmp_path)}
    assert tune.Tuner(environment=environment).folder == tmp_path / "tuning"
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    assert tune.Tuner(environment=home).folder == tmp_path / "ruda" / "tuning"
    assert tune.Tuner(environment=environment, disk=False).folder is None
    assert tune.Tuner(environment=environment, folder=tmp_path).folder == tmp_path
