"""What importing the package does and does not do, and the library it brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ruda_blas
import ruda_runtime as rr

TESTS = Path(__file__).parent


def run(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "RUDA_TARGET": "host", **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


THREADS = "len(os.listdir('/proc/self/task'))"


def test_import_starts_no_thread_and_loads_no_library() -> None:
    code = (
        f"import os, sys, numpy; before = {THREADS}\n"
        "import ruda_blas\n"
        f"assert {THREADS} == before\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'ruda_blas/libs' not in maps and 'torch' not in sys.modules\n"
    )
    run(code)


def test_the_library_stays_on_one_thread_beside_numpys() -> None:
    """No thread but our pool's, whatever the environment asks of OpenBLAS, and NumPy's product is
    NumPy's own."""
    code = (
        "import os, numpy as np, ruda_runtime as rr, ruda_blas\n"
        "rr.set_num_threads(1)\n"
        f"before = {THREADS}\n"
        "a = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)\n"
        "t = rr.Tensor.from_numpy(a)\n"
        "c = ruda_blas.gemm.matmul(t, t).numpy()\n"
        f"assert {THREADS} == before\n"
        "assert os.sched_getaffinity(0) == os.sched_getaffinity(os.getppid())\n"
        "assert np.allclose(c, a @ a, atol=1e-3)\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'ruda_blas/libs/libscipy_openblas.so' in maps\n"
        "print(ruda_blas.library_description())\n"
    )
    text = run(code, OPENBLAS_NUM_THREADS="7", OMP_NUM_THREADS="5", GOTO_NUM_THREADS="3")
    assert text.startswith("OpenBLAS 0.3.") and text.endswith("threads 1")


def test_a_missing_library_is_a_clear_error(tmp_path: Path) -> None:
    module = Path(ruda_blas._native.__file__)
    shutil.copy(module, tmp_path / module.name)
    code = (
        "import importlib.util as u, ruda_runtime\n"
        f"spec = u.spec_from_file_location('ruda_blas._native', {str(tmp_path / module.name)!r})\n"
        "module = u.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "try: module.library_description()\n"
        "except ruda_runtime.RudaRuntimeError as error: print(error)\n"
    )
    text = run(code)
    assert "the vendored OpenBLAS cannot be loaded" in text and "reinstall ruda-blas" in text


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_native_module_has_no_absolute_path() -> None:
    """The module links to no BLAS and looks for libraries in its own folder only."""
    text = subprocess.run(
        ["readelf", "-d", str(ruda_blas._native.__file__)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [line for line in text.splitlines() if "(RUNPATH)" in line or "(RPATH)" in line]
    assert all(line.endswith("[$ORIGIN]") for line in paths)
    needed = [line for line in text.splitlines() if "(NEEDED)" in line]
    assert needed and not any("openblas" in line or "gomp" in line for line in needed)


def test_kernels_are_registered() -> None:
    names = {kernel.name for kernel in rr.kernels() if kernel.package == "ruda-blas"}
    assert names == {
        "gemm.matmul",
        "gemm.product",
        "nf4.quantize",
        "nf4.dequantize",
        "nf4.matmul",
        "nf4.input_grad",
    }


def test_versions() -> None:
    assert ruda_blas.__version__.split(".")[:2] == ["0", "10"]
    assert ruda_blas._native.abi_version == 10
    assert Path(ruda_blas.get_include(), "ruda", "blas.h").is_file()


@pytest.mark.skipif(os.environ.get("RUDA_CPU") == "baseline", reason="this is the baseline run")
def test_baseline_instructions_pass_the_same_cases() -> None:
    """The kernels without AVX2, through the same conformance cases."""
    files = ["gemm/test_matmul.py", "nf4/test_quantize.py", "nf4/test_products.py"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--import-mode=importlib",
         "-p", "no:cacheprovider", "-k", "not bitsandbytes and not threads and not scratch",
         *(str(TESTS / file) for file in files)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "RUDA_CPU": "baseline", "RUDA_TARGET": "host"},
        cwd=TESTS,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:]
