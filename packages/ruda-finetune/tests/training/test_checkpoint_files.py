from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from ruda_finetune import CheckpointError, DamagedCheckpointError, read_checkpoint
from ruda_finetune.training import ResumeWarning, checkpoint
from ruda_finetune.training.events import TrainerCallback


def train(trainer, steps=1):
    for _ in range(steps):
        trainer.train_step(trainer.data.next_window())
    return trainer


def names(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def test_latest_and_previous_rotate(kit, tmp_path):
    trainer = kit.make_toy()
    for step in range(1, 4):
        assert train(trainer).save(tmp_path) == tmp_path / "latest.pt"
        assert read_checkpoint(tmp_path / "latest.pt")["counters"]["step"] == step
    assert names(tmp_path) == ["latest.pt", "previous.pt"]
    assert read_checkpoint(tmp_path / "previous.pt")["counters"]["step"] == 2


def test_file_carries_a_version_and_loads_without_code(kit, tmp_path):
    path = train(kit.make_toy()).save(tmp_path)
    payload = torch.load(path, weights_only=True)
    assert payload["format"] == "ruda-finetune checkpoint" and payload["version"] == 1
    payload["version"] = 2
    torch.save(payload, path)
    with pytest.raises(CheckpointError, match=r"has checkpoint version 2.*reads version 1"):
        kit.make_toy().resume(tmp_path)


def test_file_that_would_run_code_is_not_loaded(kit, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"format": checkpoint.FORMAT, "version": 1, "state": Bomb()}, tmp_path / "latest.pt")
    with pytest.raises(DamagedCheckpointError, match=r"latest.pt is damaged"):
        kit.make_toy().resume(tmp_path / "latest.pt")
    assert not (tmp_path / "ran").exists()


def flip(path):
    """Change one bit of a stored weight; torch.load alone does not notice."""
    data = bytearray(path.read_bytes())
    state = read_checkpoint(path)
    weight = next(iter(state["model"].values()))
    place = data.find(weight.numpy().tobytes())
    assert place > 0
    data[place] ^= 1
    path.write_bytes(data)
    torch.load(path, weights_only=True)


DAMAGE = {
    "flipped bit": flip,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello"),
    "another file": lambda path: torch.save({"a": 1}, path),
}


class Listener(TrainerCallback):
    def __init__(self):
        self.texts = []

    def on_message(self, trainer, text):
        self.texts.append(text)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_latest_falls_back_with_a_message(kit, tmp_path, damage):
    trainer = kit.make_toy()
    train(trainer).save(tmp_path)
    expected = kit.weights(trainer)
    train(trainer).save(tmp_path)
    damage(tmp_path / "latest.pt")
    listener = Listener()
    other = kit.make_toy(callbacks=[listener])
    with pytest.warns(ResumeWarning, match="going back to the older checkpoint"):
        report = other.resume(tmp_path)
    assert report.path == tmp_path / "previous.pt" and report.step == other.step == 1
    assert report.messages == listener.texts and "latest.pt" in report.messages[0]
    assert all(torch.equal(weight, expected[name]) for name, weight in kit.weights(other).items())
    # named on its own, a damaged file is an error, and so are two of them
    with pytest.raises(DamagedCheckpointError, match=r"latest\.pt"):
        kit.make_toy().resume(tmp_path / "latest.pt")
    damage_both = tmp_path / "previous.pt"
    damage(damage_both)
    with pytest.raises(DamagedCheckpointError) as caught:
        kit.make_toy().resume(tmp_path)
    text = str(caught.value)
    for words in ("no checkpoint in", "latest.pt", "previous.pt", "afresh in another directory"):
        assert words in text
    assert "weights_only" not in text and "torch" not in text
    damage_both.unlink()
    with pytest.raises(DamagedCheckpointError, match=r"there is no previous\.pt"):
        kit.make_toy().resume(tmp_path)


def test_unreadable_is_not_damaged(kit, tmp_path, monkeypatch):
    """A file that may be whole must not make the run fall back to an older one."""
    trainer = kit.make_toy()
    train(trainer).save(tmp_path)
    train(trainer).save(tmp_path)
    monkeypatch.setattr(torch, "load", Refusal(PermissionError(13, "Permission denied")))
    with pytest.raises(CheckpointError, match=r"latest\.pt cannot be read: Permission denied"):
        kit.make_toy().resume(tmp_path)
    monkeypatch.setattr(torch, "load", Refusal(MemoryError()))
    with pytest.raises(MemoryError):
        kit.make_toy().resume(tmp_path)


class Refusal:
    def __init__(self, error):
        self.error = error

    def __call__(self, *arguments, **options):
        raise self.error


def test_nothing_to_resume(kit, tmp_path):
    with pytest.raises(CheckpointError, match=r"neither latest\.pt nor previous\.pt"):
        kit.make_toy().resume(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        kit.make_toy().resume(tmp_path / "run.pt")


def test_no_space_left_keeps_the_last_good_checkpoint(kit, tmp_path):
    trainer = kit.make_toy()
    train(trainer).save(tmp_path)
    before = (tmp_path / "latest.pt").read_bytes()
    (tmp_path / "next.pt").symlink_to("/dev/full")  # every write ends in ENOSPC
    train(trainer)
    with pytest.raises(CheckpointError) as caught:
        trainer.save(tmp_path)
    for words in ("No space left on device", "free some space", "last good checkpoint stays"):
        assert words in str(caught.value)
    assert names(tmp_path) == ["latest.pt"]
    assert (tmp_path / "latest.pt").read_bytes() == before
    assert kit.make_toy().resume(tmp_path).step == 1
    trainer.save(tmp_path)  # space again
    assert kit.make_toy().resume(tmp_path).step == 2


def test_full_file_system(kit, tmp_path):
    """A real file system of 64 KiB, where this user may mount one."""
    room = tmp_path / "room"
    room.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(room)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs privileges")
    try:
        trainer = kit.make_toy()
        train(trainer).save(room)
        free = os.statvfs(room)
        (room / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - 8192))
        train(trainer)
        with pytest.raises(CheckpointError, match=r"No space left on device.*last good checkpoint"):
            trainer.save(room)
        assert names(room) == ["filler", "latest.pt"]
        assert kit.make_toy().resume(room).step == 1
    finally:
        subprocess.run(["umount", str(room)], check=True)


def test_write_that_reads_back_differently_is_refused(kit, tmp_path, monkeypatch):
    trainer = kit.make_toy()
    train(trainer).save(tmp_path)
    save = torch.save

    def lossy(payload, file):
        payload["state"]["counters"] = {**payload["state"]["counters"], "step": 77}
        save(payload, file)

    monkeypatch.setattr(torch, "save", lossy)
    with pytest.raises(CheckpointError, match=r"cannot write .*last good checkpoint stays"):
        trainer.save(tmp_path)
    assert names(tmp_path) == ["latest.pt"]


def killed_save(trainer, directory, moment):
    """Save in a child that is killed at a moment of the save."""
    child = os.fork()
    if child == 0:
        try:
            moment()
            trainer.save(directory)
        finally:
            os._exit(7)  # not reached: the kill comes first
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def during_write():
    def half(payload, file):
        file.write(b"PK\x03\x04 half a file")
        file.flush()
        die()

    torch.save = half


def before_sync():
    os.fsync = die


def before_renames():
    checkpoint._read = die


def between_renames():
    replace = Path.replace

    def once(self, target):
        replace(self, target)
        die()

    Path.replace = once


def before_directory_sync():
    checkpoint.sync_directory = die


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        (during_write, 2),
        (before_sync, 2),
        (before_renames, 2),
        (between_renames, 3),  # the new file was complete and checked: the save is finished
        (before_directory_sync, 3),
    ],
)
def test_killed_during_a_save(kit, tmp_path, moment, step):
    trainer = kit.make_toy()
    train(trainer).save(tmp_path)
    train(trainer).save(tmp_path)
    train(trainer)
    killed_save(trainer, tmp_path, moment)
    other = kit.make_toy()
    assert other.resume(tmp_path).step == step
    straight = train(kit.make_toy(), 5)
    train(other, 5 - step).save(tmp_path)
    assert names(tmp_path) == ["latest.pt", "previous.pt"]
    for name, weight in kit.weights(straight).items():
        assert torch.equal(weight, kit.weights(other)[name])


def test_values_a_checkpoint_cannot_hold(tmp_path):
    with pytest.raises(CheckpointError, match="tensors and plain values only, got object"):
        checkpoint.write_checkpoint(tmp_path, {"a": object()})
    assert names(tmp_path) == []


def test_digest_tells_dtypes_shapes_and_types_apart():
    zero = torch.zeros(4)
    values = [
        zero, zero.half(), zero.bfloat16(), zero.reshape(2, 2), torch.zeros(5), zero + 1,
        [zero], (zero,), {"a": zero}, {"b": zero}, 0, 0.0, False, None, "0", [0], [[0]], -0.0,
        torch.zeros(()), torch.zeros(0),
    ]  # fmt: skip
    assert len({checkpoint.state_digest(value) for value in values}) == len(values)
    assert checkpoint.state_digest({"x": [zero, 1]}) == checkpoint.state_digest(
        {"x": [zero * 1, 1]}
    )
