"""Clean environments with some of the built wheels. `nox -s integration` runs this folder."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ORDER = ["ruda-runtime", "ruda-blas", "ruda-dnn", "ruda-torch", "ruda-finetune"]


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
