"""A native module built with ruda_runtime-config.cmake and python.hpp, as the packages above do."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_runtime import _native

pybind11 = pytest.importorskip("pybind11", reason="needs pybind11, cmake and ninja")


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("needs cmake and ninja")
    binary = tmp_path_factory.mktemp("native_module")
    source = Path(__file__).with_name("native_module")
    runtime = Path(rr.__file__).parent / "cmake"
    subprocess.run(
        ["cmake", "-S", str(source), "-B", str(binary), "-G", "Ninja",
         f"-DPython_EXECUTABLE={sys.executable}", f"-Druda_runtime_ROOT={runtime}",
         f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subprocess.run(
        ["cmake", "--build", str(binary), "-j", "2"], check=True, stdout=subprocess.DEVNULL
    )
    (library,) = binary.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("ruda_example._native", library)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_a_launch_from_python(module: ModuleType) -> None:
    assert module.abi_version == _native.abi_version
    tensor = rr.Tensor.from_numpy(np.arange(5000, dtype=np.float32))
    count = rr.launch_count("example.scale")
    module.scale(tensor, 0.5)
    assert np.array_equal(tensor.numpy(), np.arange(5000) * np.float32(0.5))
    assert rr.launch_count("example.scale") == count + 1
    assert module.present(tensor) and not module.present(None)


def test_statuses_become_exceptions(module: ModuleType) -> None:
    class ExampleError(rr.RudaError, ValueError):
        pass

    strided = rr.empty((3, 4)).permute(1, 0)
    with pytest.raises(rr.RudaValueError, match=r"\[example.scale\] x: got strides \[1, 4\]"):
        module.scale(strided, 1.0)
    with pytest.raises(ExampleError, match="wanted a contiguous tensor"):
        module.scale(strided, 1.0, ExampleError)
    with pytest.raises(rr.RudaTypeError, match="x: got dtype int32, wanted float32"):
        module.scale(rr.empty(3, "int32"), 1.0)
    for wrong, name in ((np.zeros(3), "numpy.ndarray"), (None, "NoneType"), (3, "int")):
        with pytest.raises(rr.RudaTypeError, match=rf"x: got {name}, wanted a ruda_runtime.Tensor"):
            module.scale(wrong, 1.0)
    with pytest.raises(rr.UnsupportedError, match=r"\[example.absent\] no such kernel"):
        module.launch_absent()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one variant only")
def test_variants(module: ModuleType) -> None:
    assert module.variants() == [0, 1]
    assert module.squares() == 14 * (2 + _native.cpu_level())


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("objdump") is None, reason="needs objdump"
)
def test_no_shared_code_needs_avx2(module: ModuleType) -> None:
    """Templates that both variants use out of line come from the baseline objects."""
    assert module.__file__ is not None
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "-C", module.__file__],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    functions = dict(re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:.+\n)+)", listing, re.MULTILINE))
    shared = [name for name in functions if "sum_of_squares<" in name]
    assert len(shared) == 2
    with_avx2 = {name for name, code in functions.items() if re.search(r"%ymm|\bvmul", code)}
    assert any("ruda::v3::scale" in name for name in with_avx2)
    assert {name for name in with_avx2 if "ruda::v3::" not in name} == set()
