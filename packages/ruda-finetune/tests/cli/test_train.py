"""`ruda-finetune train`: what it prints, writes and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ruda_finetune import read_metrics


def options(model: Path, data: Path, output: Path, steps: int) -> list[object]:
    return [
        "train", "--model", model, "--data", data, "--output", output, "--steps", steps,
        "--batch-size", 3, "--lr", "1e-2", "--rank", 4, "--dropout", 0.1, "--save-every", 4,
    ]  # fmt: skip


def test_run_shows_what_it_does_and_leaves_everything(
    cli: Callable[..., None],
    model_directory: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "run"
    cli(*options(model_directory, data, output, 30), "--test-data", data, "--samples", 7,
        "--max-new-tokens", 4)  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "ruda:0", "target host", "NF4 in blocks of 64", "compute float32", "adapters float32",
        "14 of 14 linear layers", "trained,", "fused 2 attention, 2 mlp, 5 norm", "first step:",
        "tokens/s", "left", "before training: 0 of 7 exact", "after training:", "report.html",
    ):  # fmt: skip
        assert part in shown, (part, shown)
    metrics = read_metrics(output / "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 31))
    assert metrics[-1]["loss"] < 0.6 * metrics[0]["loss"]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["steps"] == 30 and summary["samples"] == 7 and summary["exact_before"] == 0
    assert summary["last_loss"] == metrics[-1]["loss"]
    page = (output / "report.html").read_text()
    assert "say 3" in page and "learning_rate" in page and "data:image/png" in page
    assert (output / "loss.png").read_bytes().startswith(b"\x89PNG")
    adapter = load_file(output / "adapter" / "adapter_model.safetensors")
    assert len(adapter) == 28 and any(
        t.abs().sum() > 0 for n, t in adapter.items() if "lora_B" in n
    )

    # the adapter is what eval and generate load
    answers = tmp_path / "answers.jsonl"
    cli("eval", "--model", model_directory, "--adapter", output / "adapter", "--data", data,
        "--limit", 7, "--max-new-tokens", 4, "--output", answers)  # fmt: skip
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sum(row["exact"] for row in rows) == summary["exact_after"]
    capsys.readouterr()
    cli("generate", "--model", model_directory, "--adapter", output / "adapter",
        "--prompt", "say 0", "--prompt", "say 1", "--max-new-tokens", 4)  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [row["answer"] for row in rows[:2]]

    # settings.json starts the same run elsewhere
    again = tmp_path / "again"
    cli("train", "--config", output / "settings.json", "--output", again, "--samples", 0)
    assert read_metrics(again / "metrics.jsonl")[-1]["loss"] == metrics[-1]["loss"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ruda_finetune", *[str(argument) for argument in arguments]]


def test_interrupt_resume_equals_one_run(
    cli: Callable[..., None], model_directory: Path, data: Path, tmp_path: Path
) -> None:
    """Ctrl-C ends with 130 after a whole step; --resume gives the uninterrupted run's bytes."""
    steps = 60
    output = tmp_path / "stopped"
    process = subprocess.Popen(
        command(*options(model_directory, data, output, steps)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "RUDA_TARGET": "host"},
    )  # fmt: skip
    metrics = output / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert (
        f"train --config {output / 'settings.json'} --resume" in text
        and (output / "latest.pt").exists()
    )
    done = len(read_metrics(metrics))
    assert 3 <= done < steps

    cli("train", "--config", output / "settings.json", "--resume")  # as the message says
    whole = tmp_path / "whole"
    cli(*options(model_directory, data, whole, steps))
    first, second = (read_metrics(folder / "metrics.jsonl") for folder in (output, whole))
    assert [row["loss"] for row in first] == [row["loss"] for row in second]
    one, two = (
        load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (output, whole)
    )
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_errors_are_one_line_and_exit_code_1(
    model_directory: Path, data: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        command("train", "--model", model_directory, "--data", tmp_path / "no.jsonl",
                "--output", tmp_path / "run"),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error:") and "no.jsonl" in done.stderr
    assert not (tmp_path / "run").exists()
