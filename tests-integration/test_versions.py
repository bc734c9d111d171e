"""A wheel with another ABI is refused by pip, and by the import when it was forced in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment, wheel_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def foreign_wheel(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ruda-runtime as the next ABI would ship it: version 0.11.0, ABI 11 compiled in."""
    folder = tmp_path_factory.mktemp("foreign")
    source = folder / "ruda-runtime"
    shutil.copytree(
        ROOT / "packages" / "ruda-runtime", source, ignore=shutil.ignore_patterns("*.so", "build")
    )
    package = source / "src" / "ruda_runtime"
    replace(package / "_version.py", r'"0\.10\.\d+"', '"0.11.0"')
    replace(package / "include" / "ruda" / "abi.h", r"(define RUDA_ABI_VERSION) 10", r"\1 11")
    replace(package / "_abi.py", r'("tensor": )10', r"\g<1>11")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(folder), str(source)],
        check=True,
    )  # fmt: skip
    (wheel,) = folder.glob("ruda_runtime-0.11.0-*.whl")
    return wheel


def replace(path: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, path.read_text())
    assert count > 0, (path, pattern)
    path.write_text(text)


@pytest.fixture(scope="module")
def environment(wheelhouse: Path, new_environment: Callable[[str], Environment]) -> Environment:
    made = new_environment("versions")
    made.install(str(wheel_of(wheelhouse, "ruda-dnn")))
    return made


def test_pip_refuses_the_pair(
    environment: Environment, foreign_wheel: Path, wheelhouse: Path
) -> None:
    done = environment.pip(
        "install", "--dry-run", str(foreign_wheel), str(wheel_of(wheelhouse, "ruda-dnn"))
    )
    assert done.returncode != 0
    assert "ruda-runtime" in done.stderr and "conflict" in done.stderr.lower(), done.stderr


def test_import_refuses_what_was_forced_in(
    environment: Environment, foreign_wheel: Path, wheelhouse: Path
) -> None:
    environment.check("import ruda_dnn")
    environment.install("--no-deps", "--force-reinstall", str(foreign_wheel))
    try:
        done = environment.run("import ruda_blas")
        assert done.returncode != 0
        for part in ("AbiMismatch", "ruda-blas 0.10.", "ruda-runtime 0.11.0", "10", "11",
                     "pip install"):  # fmt: skip
            assert part in done.stderr, (part, done.stderr)
        caught = environment.check(
            "try:\n import ruda_dnn\nexcept ImportError as e: print(type(e).__name__)"
        )
        assert caught.strip() == "AbiMismatch"
    finally:
        environment.install(
            "--no-deps", "--force-reinstall", str(wheel_of(wheelhouse, "ruda-runtime"))
        )
    environment.check("import ruda_dnn")


def test_import_refuses_another_native_module(
    environment: Environment, foreign_wheel: Path, wheelhouse: Path
) -> None:
    """Only the compiled module is of another ABI: the numbers compiled in are what counts."""
    import zipfile

    where = "import ruda_runtime, pathlib; print(pathlib.Path(ruda_runtime.__file__).parent)"
    site = Path(environment.check(where).strip())
    with zipfile.ZipFile(foreign_wheel) as archive:
        (name,) = [n for n in archive.namelist() if re.search(r"/_native\..*so$", n)]
        (site / Path(name).name).write_bytes(archive.read(name))
    try:
        done = environment.run("import ruda_runtime")
        assert done.returncode != 0 and "AbiMismatch" in done.stderr, done.stderr
    finally:
        environment.install(
            "--no-deps", "--force-reinstall", str(wheel_of(wheelhouse, "ruda-runtime"))
        )
    environment.check("import ruda_dnn")
