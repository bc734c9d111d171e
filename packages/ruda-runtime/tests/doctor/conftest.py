"""Installations made for a test: small packages in place of those above ruda-runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ruda_runtime import doctor

ABOVE = {
    "ruda_blas": ["ruda-runtime"],
    "ruda_dnn": ["ruda-runtime", "ruda-blas"],
    "ruda_torch": ["ruda-runtime", "ruda-blas", "ruda-dnn"],
    "ruda_finetune": ["ruda-runtime", "ruda-blas", "ruda-dnn", "ruda-torch"],
}


class Installation:
    """Packages that stand first on the module search path of this process and its children."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.cache = folder / "cache"
        for name, needs in ABOVE.items():
            self.write(name, "from ._version import __version__\n")
            (folder / name / "_version.py").write_text('__version__ = "0.10.0"\n')
            self.abi(name, {below: {"tensor": 10} for below in needs})

    def write(self, package: str, code: str) -> None:
        (self.folder / package).mkdir(exist_ok=True)
        (self.folder / package / "__init__.py").write_text(code)

    def abi(self, package: str, requires: dict[str, Any], provides: int = 10) -> None:
        text = f"PROVIDES = {{'tensor': {provides}}}\nREQUIRES = {requires!r}\n"
        (self.folder / package / "_abi.py").write_text(text)

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
        given = {"RUDA_TARGET": "host", "RUDA_CACHE_DIR": str(self.cache), **variables}
        return {**kept, **given}

    def collect(self, **variables: str) -> dict[str, Any]:
        return doctor.collect(self.environment(**variables))

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of the interpreter, with this installation first on its path."""
        environment = self.environment(**variables)
        environment["PYTHONPATH"] = os.pathsep.join([str(self.folder), *filter(None, sys.path)])
        return subprocess.run([sys.executable, *command], env=environment, capture_output=True,
                              text=True, timeout=200)  # fmt: skip

    def run_json(self, *command: str, **variables: str) -> tuple[int, dict[str, Any]]:
        done = self.run(*command, "--json", **variables)
        assert done.stdout.startswith("{"), done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    made = Installation(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    return made


@pytest.fixture
def only() -> Callable[[dict[str, Any]], dict[str, str]]:
    """The one finding of a report."""

    def one(report: dict[str, Any]) -> dict[str, str]:
        assert len(report["findings"]) == 1, report["findings"]
        assert report["ok"] is False
        return report["findings"][0]

    return one
