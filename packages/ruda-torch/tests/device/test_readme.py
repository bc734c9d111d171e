"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    loss = float(capsys.readouterr().out.split()[0])
    assert loss < 1
