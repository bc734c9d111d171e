"""Record-only mode: launches are checked and counted, cost next to nothing, and need no server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def test_checks_work_without_interpretation(fresh: Any) -> None:
    done = fresh(
        """
        import os
        d.start()
        kernel, s = d.Kernel("scale", d_types := {"x": "*fp32", "out": "*fp32", "n": "i32",
                             "factor": "fp32", "BLOCK": 128}, divisible_by_16=["x"]), d.stream()
        x = d.upload(np.zeros(100, np.float32))
        kernel(1, s, x, x, 100, 2.0)
        print(kernel.launch(1, s, x + 4, x, 100, 2.0)[0].name)
        undescribed = d.Kernel("row_sum", {"x": "*fp32"}, described=False)
        print(undescribed.launch(1, s, x)[0].name, undescribed.launch(0, s, x)[0].name)
        ok(cuda.cuStreamSynchronize(s))
        print(testing.counters()["launches"], testing.counters()["interpreted"])
        print(len(testing.reports()))
        """,
        record_only=True,
    )
    assert done.stdout.split() == [
        "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE", "2", "0", "2",
    ], done.stderr  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.fail("the overhead test needs a C++ compiler: install one, or set CXX")
    built = tmp_path_factory.mktemp("overhead") / "overhead"
    source = str(HERE / "overhead.cpp")
    subprocess.run(
        [compiler, "-std=c++20", "-O2", "-Wall", "-Werror", source, "-ldl", "-o", str(built)],
        check=True,
    )
    return built


def test_a_launch_from_cpp_costs_well_below_two_microseconds(program: Path) -> None:
    from ruda_runtime import testing

    library = Path(testing.__file__).with_name("libcuda.so.1")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUDA_")}
    done = subprocess.run(
        [str(program), str(library)],
        env={**environment, "RUDA_DOUBLE_RECORD_ONLY": "1", "RUDA_DOUBLE_LEAKS": "0"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    nanoseconds = float(done.stdout)
    assert nanoseconds < 1500, f"{nanoseconds:.0f} ns a launch"
