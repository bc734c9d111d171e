"""Fixtures of the integration tests; `nox -s integration` builds the wheels they use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    folder = Path(os.environ.get("RUDA_WHEELHOUSE", "wheelhouse"))
    assert folder.is_dir(), "no wheels: run `nox -s integration`, which builds them first"
    return folder


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    def create(name: str) -> Environment:
        root = tmp_path_factory.mktemp(name) / "env"
        subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", str(root)], check=True)
        return Environment(root)

    return create
