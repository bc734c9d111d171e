"""The README's example and its table of settings are true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ruda_runtime import settings

from .conftest import ON_GPU

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_runs(python_output: Callable[..., str]) -> None:
    code, _ = re.findall(  # the second one: tests/cuda/test_kernel.py
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len([line for line in code.splitlines() if line]) <= 10
    assert python_output(code, RUDA_TARGET="host").splitlines() == [
        "(2, 3) (1, 4) False",
        "33 bfloat16 host:0",
        "12 True",
    ]


def test_the_example_runs_on_a_gpu(python_output: Callable[..., str]) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    driver = {} if ON_GPU else {"RUDA_CUDA_DRIVER": "double"}
    lines = python_output(code, RUDA_TARGET="cuda", **driver).splitlines()
    assert lines[:2] == ["(2, 3) (1, 4) False", "33 bfloat16 cuda:0"]


def test_every_setting_is_documented() -> None:
    """The variables of the driver's double are described where it is."""
    documented = re.findall(r"^\| `(RUDA_[A-Z_]+)` \|", README.read_text("utf-8"), re.MULTILINE)
    own = [setting.name for setting in settings.SETTINGS if setting.package == "ruda-runtime"]
    assert sorted(documented) == sorted(n for n in own if not n.startswith("RUDA_DOUBLE_"))
