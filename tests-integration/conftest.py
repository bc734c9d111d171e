"""Clean environments with some of the built wheels. `nox -s integration` runs this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ORDER = ["ruda-runtime", "ruda-blas", "ruda-dnn", "ruda-torch", "ruda-finetune"]


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    folder = Path(os.environ.get("RUDA_WHEELHOUSE", "wheelhouse"))
    assert folder.is_dir(), "no wheels: run `nox -s integration`, which builds them first"
    return folder


def wheel_of(wheelhouse: Path, package: str) -> Path:
    (wheel,) = wheelhouse.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


@dataclass
class Environment:
    """A virtual environment of its own."""

    root: Path

    @property
    def python(self) -> str:
        return str(self.root / "bin" / "python")

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "pip", *arguments], capture_output=True, text=True, timeout=600
        )

    def install(self, *arguments: str) -> None:
        done = self.pip("install", "--quiet", *arguments)
        assert done.returncode == 0, done.stderr

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `code` away from the source tree, without the caller's Python settings."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RUDA_"))}
        return subprocess.run(
            [self.python, "-c", code], capture_output=True, text=True, timeout=300,
            cwd=self.root, env={**clean, **environment},
        )  # fmt: skip

    def check(self, code: str, **environment: str) -> str:
        done = self.run(code, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    def create(name: str) -> Environment:
        root = tmp_path_factory.mktemp(name) / "env"
        subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", str(root)], check=True)
        return Environment(root)

    return create
