"""The README's Python example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    (code,) = re.findall(r"<!-- example: run by a test -->\n```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "llama: fused 2 attention, 2 mlp, 5 norm" in shown
    assert 1 < float(shown.splitlines()[-1]) < 20
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


def test_root_example() -> None:
    path = Path(__file__).resolve().parents[3] / "README.md"
    (code,) = re.findall(
        r"<!-- example: run by a test -->\n```python\n(.*?)```", path.read_text(), re.S
    )
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    model = scope["model"]
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)  # type: ignore[attr-defined]
