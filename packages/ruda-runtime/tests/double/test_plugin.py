"""``--target`` takes a test file through a target and fails tests with what the double found."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = """
    import os
    import numpy as np
    from cuda.bindings import driver as cuda

    def start():
        assert os.environ["RUDA_TARGET"] == "cuda"
        assert cuda.cuInit(0)[0] == 0
        cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
        return cuda.cuMemAlloc(64)[1]

    def test_right():
        cuda.cuMemFree(start())

    def test_double_free():
        block = start()
        cuda.cuMemFree(block)
        cuda.cuMemFree(block)

    def test_wrong_in_a_stream():
        block, stream = start(), cuda.cuStreamCreate(1)[1]
        cuda.cuMemFreeAsync(block, stream)
        block = cuda.cuMemAllocAsync(64, stream)[1]
        other = cuda.cuStreamCreate(1)[1]
        cuda.cuMemsetD8Async(int(block) + 60, 0, 5, other)

    def test_right_again():
        cuda.cuMemFree(start())

    def test_taken():
        from ruda_runtime import testing
        test_double_free()
        assert "double free" in testing.last_report()
        testing.clear_reports()

    def test_of_its_own_accord():
        start()
        raise ValueError("not the double's business")
    """


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(text))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUDA_")}
    plugin = "ruda_runtime.testing.pytest_plugin"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", "-v", "--rootdir",
         str(folder), "-c", os.devnull, str(folder / "test_it.py"), *options],
        env=environment, capture_output=True, text=True, timeout=120, cwd=folder,
    )  # fmt: skip


def test_the_double_fails_tests(tmp_path: Path) -> None:
    out = run(tmp_path, TESTS, "--target", "double").stdout
    assert "ruda target: double" in out
    for name, result in {
        "test_right": "PASSED",
        "test_double_free": "FAILED",
        "test_wrong_in_a_stream": "FAILED",
        "test_right_again": "PASSED",
        "test_taken": "PASSED",
        "test_of_its_own_accord": "FAILED",
    }.items():
        assert f"::{name} {result}" in out, out
    assert "the driver double found 1 violations: [cuMemFree] double free" in out
    assert "5 bytes from" in out and "end 1 bytes behind allocation" in out
    assert "not the double's business" in out


@pytest.mark.parametrize("target", ["host", "cuda"])
def test_the_other_targets_set_the_environment(tmp_path: Path, target: str) -> None:
    text = f"""
        import os
        def test_it():
            assert os.environ["RUDA_TARGET"] == "{target}"
            assert "RUDA_CUDA_DRIVER" not in os.environ
        """
    assert run(tmp_path, text, "--target", target).returncode == 0


def test_without_the_option_nothing_is_set(tmp_path: Path) -> None:
    text = "import os\ndef test_it():\n    assert 'RUDA_TARGET' not in os.environ\n"
    assert run(tmp_path, text).returncode == 0
    assert "invalid choice" in run(tmp_path, text, "--target", "gpu").stderr
