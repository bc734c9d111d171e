"""Every kind of bad input is named, and nothing is lost or left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ruda_finetune import (
    CheckpointError,
    DataError,
    FinetuneError,
    ModelFileError,
    TargetModuleError,
    TemplateError,
)
from ruda_finetune.cli.settings import SettingsError, TrainSettings, make_settings

Cli = Callable[..., None]


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


GOOD = {
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}]
}


def test_targets(train: Cli, tmp_path: Path) -> None:
    with pytest.raises(TargetModuleError, match=r"q_porj.*q_proj"):
        train(targets="q_porj,k_proj")
    with pytest.raises(TargetModuleError, match="lm_head"):
        train(targets="lm_head")  # tied to the embedding: must not be quantised
    assert not (tmp_path / "run" / "run.json").exists()


def test_data(train: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="empty"):
        train(data=tmp_path / "empty.jsonl")
    silent = {"messages": [{"role": "user", "content": "q"}]}
    with pytest.raises(DataError, match=r"line 2: no assistant message"):
        train(data=lines(tmp_path / "silent.jsonl", GOOD, silent))
    misspelt = {
        "messages": [{"role": "user", "content": "q"}, {"role": "asistant", "content": "a"}]
    }
    with pytest.raises(DataError, match=r"line 1: message 2 has the role 'asistant'.*'assistant'"):
        train(data=lines(tmp_path / "misspelt.jsonl", misspelt))
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]},
                          GOOD["messages"][1]]}  # fmt: skip
    with pytest.raises(DataError, match=r"message 1 \(user\) is a list of parts: write it as text"):
        train(data=lines(tmp_path / "parts.jsonl", parts))
    long = {"messages": [GOOD["messages"][0], {"role": "assistant", "content": "x" * 200}]}
    path = lines(tmp_path / "long.jsonl", GOOD, long, long)
    with pytest.raises(DataError, match=r"2 of 3 rows.*64.*--truncate"):
        train(data=path, max_length=64)
    with pytest.raises(DataError, match=r"none of the 3 rows has a label within max_length 8"):
        train(data=path, max_length=8, truncate=True)


def test_unknown_role(train: Cli, cli: Cli, model_directory: Path, tmp_path: Path) -> None:
    """Templates of models may know any role; the built-in one knows its own."""
    record = {"messages": [{"role": "alien", "content": "a"}, *GOOD["messages"]]}
    path = lines(tmp_path / "roles.jsonl", GOOD, record)
    words = r'message 1 has the role "alien", wanted one of system, user, assistant'
    with pytest.raises(DataError, match=rf"roles\.jsonl, line 2: .*{words}"):
        train(data=path, template="chatml")
    ask: list[object] = ["--model", model_directory, "--max-new-tokens", 1]
    with pytest.raises(DataError, match=rf"roles\.jsonl, line 2: .*{words}"):
        cli("eval", *ask, "--data", path, "--template", "chatml")
    with pytest.raises(TemplateError, match=rf"prompt 1: .*{words}"):
        cli("generate", *ask, "--input", path, "--template", "chatml")
    assert not (tmp_path / "run").exists()
    train(data=path, steps=1)  # the model's own template writes it


def test_prompts_of_a_file(cli: Cli, model_directory: Path, tmp_path: Path) -> None:
    for messages, words in [
        ("hello", "non-empty list, got text"),
        ([], "non-empty list"),
        (["hello"], "message 1 must be an object"),
        ([{"role": "usr", "content": "q"}], "message 1 has the role 'usr': did you mean 'user'"),
        ([{"role": "user", "content": 3}], "must be text, got a number"),
        ([GOOD["messages"][1]], "wanted a prompt before the answer"),
    ]:
        path = lines(tmp_path / "prompts.jsonl", GOOD, {"messages": messages})
        with pytest.raises(DataError, match=rf"prompts\.jsonl, line 2: .*{words}"):
            cli("generate", "--model", model_directory, "--input", path)


def test_template(train: Cli, model_directory: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.jinja"
    plain.write_text("{# {% generation %} #}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(TemplateError, match=r"no \{% generation %\} block"):
        train(template=plain)
    with pytest.raises(TemplateError, match="neither auto, chatml nor a file"):
        train(template="chatlm")


def test_template_of_the_model_without_marks(
    train: Cli, cli: Cli, model_directory: Path, data: Path, tmp_path: Path
) -> None:
    """The first thing a newcomer may meet: it names the option that helps."""
    plain = tmp_path / "plain"
    shutil.copytree(model_directory, plain)
    template = plain / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
    with pytest.raises(TemplateError, match=r"add --template .*--train-on-prompt"):
        train(model=plain)
    with pytest.raises(TemplateError, match=r"add --template"):
        cli("eval", "--model", plain, "--data", data)


def test_device(train: Cli, tmp_path: Path) -> None:
    for device in ("ruda:3", "cuda", "gpu"):
        with pytest.raises(ModelFileError, match=device):
            train(device=device)
    assert not (tmp_path / "run").exists()


def test_evaluation_output(cli: Cli, model_directory: Path, data: Path, tmp_path: Path) -> None:
    """Found out before the model is loaded (there is none); what was there stays."""
    for output, words in [
        (tmp_path / "no" / "a", "the folder .*no does not exist"),
        (tmp_path, "Is a directory"),
        ("/proc/ruda", "No such file"),
    ]:
        with pytest.raises(DataError, match=rf"--output {output}.*{words}"):
            cli("eval", "--model", tmp_path, "--data", data, "--output", output)
    kept = tmp_path / "kept.jsonl"
    kept.write_text("earlier answers\n")
    for output in (kept, tmp_path / "new.jsonl"):
        with pytest.raises(ModelFileError):
            cli("eval", "--model", tmp_path, "--data", data, "--output", output)
    assert kept.read_text() == "earlier answers\n" and not (tmp_path / "new.jsonl").exists()
    ask = ["eval", "--model", model_directory, "--data", data, "--limit", 2, "--max-new-tokens", 1]
    cli(*ask, "--output", kept)
    assert [set(json.loads(line)) for line in kept.read_text().splitlines()] == [
        {"messages", "expected", "answer", "exact"}
    ] * 2


def test_evaluation_output_that_fills_up(
    cli: Cli, model_directory: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers are not lost."""
    with pytest.raises(
        DataError, match=r"/dev/full cannot be written: No space left.*standard out"
    ):
        cli("eval", "--model", model_directory, "--data", data, "--limit", 2,
            "--max-new-tokens", 1, "--output", "/dev/full")  # fmt: skip
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[:1] == "{"]
    assert len(rows) == 2 and all("answer" in row for row in rows)


def test_two_processes_in_one_run(train: Cli, tmp_path: Path) -> None:
    train()
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from ruda_finetune.training import locked_run_directory as lock\n"
         "with lock(sys.argv[1]): print('held', flush=True); sys.stdin.read()",
         str(tmp_path / "run")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        with pytest.raises(CheckpointError, match=f"in use by another process .pid {holder.pid}"):
            train(resume=True)
    finally:
        holder.communicate("")
    train(resume=True)


def test_model_files(train: Cli, model_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        train(model=tmp_path / "nothing")
    broken = tmp_path / "broken"
    shutil.copytree(model_directory, broken)
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        train(model=broken)
    tensors = load_file(model_directory / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = float("nan")
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(FinetuneError, match=r"model\.layers\.1\.mlp\.up_proj"):
        train(model=broken)
    gguf = tmp_path / "short.gguf"
    gguf.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ModelFileError, match=r"short\.gguf"):
        train(model=gguf)


def test_output_directory(train: Cli, tmp_path: Path, data: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no run"):
        train(resume=True)
    train()
    adapter = (tmp_path / "run" / "adapter" / "adapter_model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"already holds a run.*--resume"):
        train()
    with pytest.raises(CheckpointError, match=r"rank.*16.*8"):
        train(resume=True, rank=8)
    with pytest.raises(CheckpointError, match="seed"):
        train(resume=True, seed=5)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(data.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(CheckpointError, match="data"):
        train(resume=True, data=other)
    kept = (tmp_path / "run" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert kept == adapter


def test_resume_with_another_base(train: Cli, model_directory: Path, tmp_path: Path) -> None:
    train()
    other = tmp_path / "other"
    shutil.copytree(model_directory, other)
    tensors = load_file(model_directory / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="base_id"):
        train(resume=True, model=other)


def test_no_space_left(train: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up during the second checkpoint: the first one stays whole."""
    import errno

    from ruda_finetune.training import checkpoint, read_checkpoint

    saves = []
    real = checkpoint.torch.save

    def save(*arguments: object, **options: object) -> None:
        saves.append(1)
        if len(saves) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments, **options)

    monkeypatch.setattr(checkpoint.torch, "save", save)
    with pytest.raises(CheckpointError, match=r"(?i)no space left"):
        train(save_every=1)
    assert read_checkpoint(tmp_path / "run" / "latest.pt")["counters"]["step"] == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("learning_rate", ["inf", "nan", "1e999", "0", "-1", "11"]),
        ("weight_decay", ["inf", "nan", "-1", "1e4"]),
        ("max_grad_norm", ["inf", "nan", "0", "1e31"]),
        ("epochs", ["inf", "nan", "0", "1e300"]),
        ("alpha", ["inf", "nan", "0", "1e300"]),
        ("dropout", ["nan", "1", "-0.1"]),
        ("rank", ["0", "100000000", "99999999999999999999999"]),
        ("block_size", ["0", "3", "65538", "100000000000"]),
        ("seed", ["-1", "4294967296", "99999999999999999999999"]),
        ("warmup_steps", ["-1", "99999999999999999999999"]),
        ("steps", ["0", "99999999999999999999999"]),
        ("batch_size", ["0", "99999999999999999999999"]),
        ("accumulate", ["0", "99999999999999999999999"]),
        ("samples", ["-1", "99999999999999999999999"]),
        ("max_new_tokens", ["0", "99999999999999999999999"]),
        ("max_length", ["1", "99999999999999999999999"]),
        ("save_every", ["0", "99999999999999999999999"]),
    ],
)
def test_absurd_settings(name: str, values: list[str]) -> None:
    """Every number of `train`, on the command line and in a file, before anything is loaded."""
    option = name.replace("_", ".")  # as an option or, where fields are compared, by its name
    for value in values:
        given = {"model": "m", "data": "d", "output": "o", name: value}
        with pytest.raises(SettingsError, match=option):
            make_settings(None, given)


def test_every_number_is_among_them() -> None:
    numbers = (int, float, int | None, float | None)
    found = {
        name for name, field in TrainSettings.model_fields.items() if field.annotation in numbers
    }
    (mark,) = (mark for mark in test_absurd_settings.pytestmark if mark.name == "parametrize")
    assert found == {name for name, _ in mark.args[1]}


def test_numbers_are_checked_before_the_load(
    train: Cli, cli: Cli, model_directory: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("ruda_finetune.loading.model.materialize", load)
    with pytest.raises(FinetuneError, match=r"\[rank\] must be at most 64.*got 65"):
        train(rank=65)
    with pytest.raises(FinetuneError, match=r"\[rank\] must be at most 32.*got 33"):
        train(rank=33, targets="k_proj,v_proj")
    with pytest.raises(
        FinetuneError, match="warmup_steps must be at most the run's 2 steps, got 3"
    ):
        train(warmup_steps=3)
    with pytest.raises(FinetuneError, match="at most the run's 12 steps, got 13"):
        cli("train", "--model", model_directory, "--data", data, "--output", "x", "--epochs", 2,
            "--batch-size", 2, "--accumulate", 2, "--warmup-steps", 13)  # fmt: skip
    with pytest.raises(FinetuneError, match=r"\[max-new-tokens\] got 257, the model has 256"):
        train(test_data=data, max_new_tokens=257)
    with pytest.raises(FinetuneError, match=r"\[max-new-tokens\] got 257, the model has 256"):
        cli("eval", "--model", model_directory, "--data", data, "--max-new-tokens", 257)
    with pytest.raises(FinetuneError, match=r"\[tokens\] got 257, the model has 256"):
        cli("profile", model_directory, "--tokens", 257)
    with pytest.raises(FinetuneError, match=r"\[rank\] must be at most 64.*got 65"):
        cli("profile", model_directory, "--rank", 65)
    ask: list[object] = ["generate", "--model", model_directory, "--prompt", "q"]
    for option, value, words in [
        ("max-new-tokens", 257, "the model has 256"),
        ("top-p", 0, "top_p must be"),
        ("top-p", 0.5, "need a temperature above 0"),
    ]:
        with pytest.raises(FinetuneError, match=words):
            cli(*ask, f"--{option}", value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "--seed", 99999999999999999999999],
        ["generate", "--seed", -1],
        ["generate", "--temperature", "inf"],
        ["generate", "--temperature", "nan"],
        ["generate", "--top-p", "nan"],
        ["generate", "--top-p", "inf"],
        ["generate", "--batch-size", 10**20],
        ["generate", "--max-new-tokens", 10**20],
        ["eval", "--batch-size", 10**20],
        ["eval", "--max-new-tokens", 10**20],
        ["eval", "--limit", 10**20],
        ["profile", "--tokens", 10**20],
        ["profile", "--rank", 10**20],
    ],
)
def test_wrong_usage(cli: Cli, arguments: list[object]) -> None:
    """Numbers that the options themselves refuse: exit code 2, and the option is named."""
    with pytest.raises(Exception, match=r"less than|greater than|range") as caught:
        cli(*arguments)
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]
    assert str(arguments[1]) in caught.value.format_message()  # type: ignore[attr-defined]


def test_settings(train: Cli, cli: Cli, tmp_path: Path) -> None:
    for options, words in [
        ({"epochs": 1}, "steps or epochs"),
        ({"rank": 0}, "--rank"),
        ({"schedule": "step"}, "--schedule"),
        ({"block_size": 3}, "block_size must be even"),
        ({"dropout": 1.5}, "--dropout"),
    ]:
        with pytest.raises(FinetuneError, match=words):
            train(**options)
    with pytest.raises(FinetuneError, match="--model, --data"):
        cli("train", "--output", tmp_path / "x")
    bad = tmp_path / "bad.json"
    bad.write_text('{"model": "m", "data": "d", "output": "o", "learning_rat": 1}')
    with pytest.raises(FinetuneError, match="learning-rat"):
        cli("train", "--config", bad)


def test_every_label_masked(train: Cli, tmp_path: Path) -> None:
    record = {"input_ids": [5, 6, 7], "labels": [-100, -100, -100]}
    with pytest.raises(DataError, match=r"line 1: no token of this row is a label"):
        train(data=lines(tmp_path / "masked.jsonl", record))


def test_ids_beyond_the_vocabulary(
    train: Cli, cli: Cli, model_directory: Path, tmp_path: Path
) -> None:
    """Named with their line, and nothing is left behind."""
    good = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    for record, words in [
        ({"input_ids": [5, 6, 99999999], "labels": [-100, 6, 7]}, "input_ids holds 99999999"),
        ({"input_ids": [5, 6, 7], "labels": [-100, 6, 300]}, "labels holds 300"),
        ({"input_ids": [5, 6, 2**70], "labels": [-100, 6, 7]}, f"input_ids holds {2**70}"),
        ({"input_ids": [5, 6, 7], "labels": [-100, 6, -1]}, "labels holds -1"),
    ]:
        path = lines(tmp_path / "ids.jsonl", good, record)
        with pytest.raises(DataError, match=rf"ids\.jsonl, line 2: {words}"):
            train(data=path)
        assert not (tmp_path / "run").exists()


def test_generate_needs_prompts(cli: Cli, model_directory: Path) -> None:
    with pytest.raises(DataError, match="--prompt TEXT or --input FILE"):
        cli("generate", "--model", model_directory)
    assert torch.is_grad_enabled()
