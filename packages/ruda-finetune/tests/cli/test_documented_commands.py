"""Every `ruda-finetune` command in the documentation has only options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from ruda_finetune.cli.app import app

ROOT = Path(__file__).resolve().parents[4]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *ROOT.glob("packages/*/README.md")]


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        found += [(page.name, line) for line in re.findall(r"^ruda-finetune .*$", text, re.M)]
    return found


def test_the_documentation_shows_every_command() -> None:
    shown = {shlex.split(line)[1] for _, line in commands()}
    assert shown == {"train", "eval", "generate", "profile", "cache"}


@pytest.mark.parametrize(("page", "line"), commands())
def test_options_exist(page: str, line: str) -> None:
    words = shlex.split(line)
    command = typer.main.get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    if words[1] == "cache":
        assert words[2] in command.commands and not words[3:]
        return
    known = {name for parameter in command.params for name in parameter.opts}
    used = [word for word in words[2:] if word.startswith("--")]
    assert used and set(used) <= known
