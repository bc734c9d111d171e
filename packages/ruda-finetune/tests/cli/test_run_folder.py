"""A run's folder: nothing in it is lost, and no state of it is a dead end."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ruda_finetune import CheckpointError, read_metrics

Cli = Callable[..., None]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_damaged_record_changes_nothing(train: Cli, tmp_path: Path) -> None:
    output = tmp_path / "run"
    train()
    (output / "run.json").write_text("{")
    before = contents(output)
    with pytest.raises(CheckpointError, match=r"run\.json is damaged.*resume it \(--resume\)"):
        train(rank=3)
    with pytest.raises(CheckpointError, match="rank: checkpoint 16, this run 3"):
        train(resume=True, rank=3)
    assert contents(output) == before
    train(resume=True)
    assert json.loads((output / "run.json").read_text())["run_config"]["rank"] == 16


def test_output_that_cannot_be_written(train: Cli, tmp_path: Path) -> None:
    """Found out before the model is loaded."""
    with pytest.raises(CheckpointError, match="cannot write in /proc/ruda"):
        train(output="/proc/ruda", model=tmp_path)  # no model: it is not looked at
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        train(output=tmp_path / "file", model=tmp_path)


def killed_run(arguments: list[object], output: Path) -> None:
    """The command, killed after its first step."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ruda_finetune", *map(str, arguments)],
        stdout=subprocess.DEVNULL, env={**os.environ, "RUDA_TARGET": "host"},
    )  # fmt: skip
    metrics = output / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()


def test_killed_before_the_first_checkpoint(
    cli: Cli, model_directory: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--resume starts the run at step 0, with the answers from before; nothing need be deleted."""

    def options(output: Path) -> list[object]:
        return [
            "train", "--model", model_directory, "--data", data, "--output", output, "--steps", 100,
            "--batch-size", 2, "--rank", 4, "--dropout", 0.1, "--save-every", 1000,
            "--test-data", data, "--samples", 2, "--max-new-tokens", 2,
        ]  # fmt: skip

    output = tmp_path / "killed"
    killed_run(options(output), output)
    assert not (output / "latest.pt").exists()
    asked = (output / "answers_before.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"already holds a run.*resume it \(--resume\)"):
        cli(*options(output))
    with pytest.raises(CheckpointError, match="seed: checkpoint 0, this run 1"):
        cli(*options(output), "--seed", 1, "--resume")
    cli(*options(output), "--resume")
    shown = capsys.readouterr().out
    assert "has no checkpoint yet: the run starts at step 0" in " ".join(shown.split())
    assert "before training" not in shown
    assert (output / "answers_before.json").read_bytes() == asked
    whole = tmp_path / "whole"
    cli(*options(whole))
    first, second = (read_metrics(folder / "metrics.jsonl") for folder in (output, whole))
    assert [row["loss"] for row in first] == [row["loss"] for row in second]


def test_answers_from_before_are_asked_again_where_they_are_lost(
    train: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ruda_finetune import SFTTrainer

    asked = {"test_data": data, "samples": 2, "max_new_tokens": 2}

    def stop(*arguments: object, **options: object) -> None:
        raise RuntimeError("the machine went down")

    with monkeypatch.context() as patch:
        patch.setattr(SFTTrainer, "fit", stop)
        with pytest.raises(RuntimeError):
            train(**asked)
    before = tmp_path / "run" / "answers_before.json"
    texts = json.loads(before.read_text())["texts"]
    before.write_text('{"texts": [')
    train(**asked, resume=True)
    assert json.loads(before.read_text())["texts"] == texts


def test_no_checkpoint_is_whole(train: Cli, tmp_path: Path) -> None:
    output = tmp_path / "run"
    train(save_every=1)
    for name in ("latest.pt", "previous.pt"):
        path = output / name
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(CheckpointError) as caught:
        train(resume=True)
    text = str(caught.value)
    for words in ("latest.pt is damaged", "previous.pt is damaged", "afresh in another directory",
                  f"the adapter that the run saved is in {output / 'adapter'}"):  # fmt: skip
        assert words in text
    assert "weights_only" not in text


def test_disk_full_after_training(
    train: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter cannot be saved: --resume does that without training again."""
    from ruda_finetune.cli import train as command

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "adapter_model.safetensors")

    with monkeypatch.context() as patch:
        patch.setattr(command, "save_adapter", full)
        with pytest.raises(CheckpointError, match=r"adapter_model.*No space left.*--resume"):
            train()
    losses = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    train(resume=True)
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == losses
