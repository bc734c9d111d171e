"""The README's example and its table of settings are true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_runs(python_output: Callable[..., str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 10
    assert python_output(code, RUDA_TARGET="host").splitlines() == [
        "(2, 3) (1, 4) False",
        "33.0 bfloat16 host:0",
        "12 True",
    ]


def test_every_setting_is_documented() -> None:
    text = README.read_text(encoding="utf-8")
    source = README.parent / "src" / "ruda_runtime"
    used = set()
    for path in [*source.rglob("*.py"), *source.rglob("*.cpp")]:
        used |= set(re.findall(r'"(RUDA_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    documented = set(re.findall(r"^\| `(RUDA_[A-Z_]+)` \|", text, re.MULTILINE))
    assert used == documented
