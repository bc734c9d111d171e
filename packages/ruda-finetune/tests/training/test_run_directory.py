"""One rule says where a run may start and where one may go on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from ruda_finetune import CheckpointError, claim_run_directory, read_run
from ruda_finetune.training import TrainerCallback, check_run_directory


class Hook(TrainerCallback):
    """Calls a function after each step, and keeps the messages."""

    def __init__(self, after_step=None):
        self.after_step = after_step
        self.texts = []

    def on_step(self, trainer, result):
        if self.after_step is not None:
            self.after_step(trainer, result)

    def on_message(self, trainer, text):
        self.texts.append(text)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_free_directory_is_left_as_it_was(tmp_path):
    assert check_run_directory(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="holds no run"):
        check_run_directory(tmp_path / "a", resuming=True)


@pytest.mark.parametrize("damage", ["{", None], ids=["damaged", "missing"])
def test_record_lost_beside_a_checkpoint(kit, tmp_path, damage):
    """The checkpoint knows the run, so that it goes on, and the record is written again."""
    kit.make_toy().fit(steps=2, directory=tmp_path)
    record = tmp_path / "run.json"
    before = read_run(tmp_path)
    if damage is None:
        record.unlink()
    else:
        record.write_text(damage)
    word = "damaged" if damage else "missing"
    files = contents(tmp_path)
    for refuse in (
        lambda: check_run_directory(tmp_path),
        lambda: claim_run_directory(tmp_path, "toy", {"seed": 0}),
        lambda: kit.make_toy().fit(steps=3, directory=tmp_path),
    ):
        with pytest.raises(CheckpointError, match=rf"run\.json is {word}.*resume it"):
            refuse()
    with pytest.raises(CheckpointError, match="seed: checkpoint 0, this run 1"):
        kit.make_toy(seed=1).resume(tmp_path)
    assert contents(tmp_path) == files
    assert check_run_directory(tmp_path, resuming=True) is None
    trainer = kit.make_toy()
    trainer.resume(tmp_path)
    trainer.fit(steps=3, directory=tmp_path)
    after = read_run(tmp_path)
    assert after["base_id"] == before["base_id"] and after["run_config"] == before["run_config"]


def test_record_lost_without_a_checkpoint(kit, tmp_path):
    (tmp_path / "progress.json").write_text(json.dumps({"step": 3, "total_steps": 9}))
    (tmp_path / "run.json").write_text("[1, 2")
    for resuming in (False, True):
        with pytest.raises(CheckpointError, match=r"run\.json is damaged.*without|no checkpoint"):
            check_run_directory(tmp_path, resuming)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        kit.make_toy().resume(tmp_path)


def test_claimed_before_anything_is_written(kit, tmp_path):
    trainer = kit.make_toy()
    home = trainer.claim(tmp_path / "run")
    assert read_run(home)["base_id"] == "toy"
    with pytest.raises(CheckpointError, match="already holds a run"):
        kit.make_toy().claim(home)
    assert trainer.fit(steps=1, directory=home).status == "finished"


def test_directory_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"cannot write in /proc/ruda"):
        check_run_directory("/proc/ruda/run")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        check_run_directory(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot write"):
        check_run_directory(tmp_path / "file" / "run")

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("ruda_finetune._files.tempfile.TemporaryFile", refuse)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        check_run_directory(tmp_path / "made" / "for" / "it")
    assert not (tmp_path / "made").exists()


def weights_of(kit, trainer, steps, directory):
    trainer.fit(steps=steps, directory=directory)
    return kit.weights(trainer)


def test_run_that_died_before_its_first_checkpoint(kit, tmp_path):
    """Resuming it starts at step 0 and gives what a run gives that nothing happened to."""

    def die(trainer, result):
        raise KeyboardInterrupt

    home = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        kit.make_run(callbacks=[Hook(die)]).fit(steps=4, directory=home, handle_signals=False)
    (home / "next.pt").write_bytes(b"PK half a file")  # killed in its first save
    with pytest.raises(CheckpointError, match="seed: checkpoint 3, this run 4"):
        kit.make_run(seed=4).resume(home)
    hook = Hook()
    again = kit.make_run(callbacks=[hook])
    report = again.resume(home)
    assert report.path is None and report.step == again.step == 0
    assert (
        hook.texts == report.messages == [f"{home} has no checkpoint yet: the run starts at step 0"]
    )
    found = weights_of(kit, again, 4, home)
    whole = weights_of(kit, kit.make_run(), 4, tmp_path / "whole")
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    with pytest.raises(CheckpointError, match="this trainer is at step 4"):
        claim_run_directory(tmp_path / "other", again.base_id, again.run_config)
        again.resume(tmp_path / "other")
