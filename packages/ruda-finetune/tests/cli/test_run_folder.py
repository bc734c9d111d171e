"""A run's folder: nothing in it is lost, and no state of it is a dead end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ruda_finetune import CheckpointError

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
