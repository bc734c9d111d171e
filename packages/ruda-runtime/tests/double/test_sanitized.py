"""The double's own threads under sanitizers: stress.cpp with the double's sources linked in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "double"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_stress_program_is_clean(tmp_path: Path, sanitizer: str) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.fail("the stress test needs a C++ compiler: install one, or set CXX")
    program = tmp_path / "stress"
    sources = [str(each) for each in [*sorted(SOURCES.glob("*.cpp")), HERE / "stress.cpp"]]
    subprocess.run(
        [compiler, "-std=gnu++20", "-O1", "-g", f"-fsanitize={sanitizer}",
         "-fno-sanitize-recover=all", *sources, "-pthread", "-o", str(program)],
        check=True,
    )  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUDA_")}
    for seed, delay, rounds in (("1", "0", "2000"), ("2", "200", "100")):
        done = subprocess.run(
            [str(program), "8", rounds],
            env={**environment, "RUDA_DOUBLE_SEED": seed, "RUDA_DOUBLE_DELAY_US": delay},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("copies\n") and done.stderr == ""
