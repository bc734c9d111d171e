"""Compilers, PTX versions and the caches."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .conftest import KERNELS, run_script

pytest.importorskip("triton")

RECORD = {"RUDA_DOUBLE_RECORD_ONLY": "1"}
ONE = "x, y, out = e.tensors(1024)\ne.run(x, y, out, 1024)\n"
COUNT = ONE + "c = compile_counts(); print(c['compiled'], c['disk_hits'], c['memory_hits'])"


def run(cache: Path, code: str, **values: str) -> subprocess.CompletedProcess[str]:
    return run_script(cache, code, prelude=KERNELS, **{**RECORD, **values})


def output(cache: Path, code: str, **values: str) -> str:
    done = run(cache, code, **values)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.kernel"))


def test_the_second_process_reads_what_the_first_compiled(tmp_path: Path) -> None:
    assert output(tmp_path, COUNT) == "1 0 0"
    assert output(tmp_path, COUNT) == "0 1 0"
    assert output(tmp_path, ONE + "e.run(x, y, out, 1008)\n" + COUNT).endswith("0 1 2")
    assert len(files(tmp_path)) == 1 and not list(tmp_path.rglob("*.tmp"))
    # Another GPU, another kind of code: another file.
    assert output(tmp_path, COUNT, RUDA_DOUBLE_COMPUTE_CAPABILITY="8.0") == "1 0 0"
    assert output(tmp_path, COUNT, RUDA_CUDA_COMPILER="ptx") == "1 0 0"
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "other"])
def test_a_damaged_or_foreign_entry_is_a_miss(tmp_path: Path, damage: str) -> None:
    assert output(tmp_path, COUNT) == "1 0 0"
    (file,) = files(tmp_path)
    data = file.read_bytes()
    if damage == "other":  # a good file of another key
        assert output(tmp_path, COUNT, RUDA_DOUBLE_COMPUTE_CAPABILITY="8.0") == "1 0 0"
        (other,) = [each for each in files(tmp_path) if each != file]
        file.write_bytes(other.read_bytes())
    else:
        wrong = {
            "cut": data[: len(data) // 2],
            "flip": data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
            "empty": b"",
            "foreign": b"\x7fELF" + data,
        }
        file.write_bytes(wrong[damage])
    assert output(tmp_path, COUNT) == "1 0 0"
    assert file.read_bytes() == data  # written again
    assert output(tmp_path, COUNT) == "0 1 0"


def test_a_changed_source_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    module = tmp_path / "mine" / "changing.py"
    text = (
        "import triton\nimport triton.language as tl\n@triton.jit\ndef put(x):\n"
        "    tl.store(x, VALUE)\n"
    )
    code = f"""
sys.path.insert(0, {str(module.parent)!r})
from ruda_runtime.kernel import Kernel
k = Kernel("changing.put", "changing:put", {{"x": "*fp32"}})
x = rr.empty(1)
k(1, x)
print(compile_counts()["compiled"], compile_counts()["disk_hits"])
"""
    for value, wanted in (("1.0", "1 0"), ("1.0", "0 1"), ("2.0", "1 0"), ("1.0", "0 1")):
        module.write_text(text.replace("VALUE", value))
        assert output(tmp_path / "cache", code) == wanted


def test_a_folder_that_cannot_be_written_warns_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run(blocked / "cache", COUNT + "\ne.run(x, None, out, 1024)")
    assert done.returncode == 0 and done.stdout == "1 0 0\n", done.stderr
    assert done.stderr.count("CacheWarning: compiled kernels cannot be kept in") == 1


def test_a_folder_in_the_place_of_an_entry_is_a_miss(tmp_path: Path) -> None:
    assert output(tmp_path, COUNT) == "1 0 0"
    (file,) = files(tmp_path)
    file.unlink()
    file.mkdir()
    (file / "kept").write_text("")
    done = run(tmp_path, COUNT)
    assert (done.returncode, done.stdout) == (0, "1 0 0\n"), done.stderr
    assert done.stderr.count("CacheWarning: compiled kernels cannot be kept in") == 1
    assert (file / "kept").exists() and not list(tmp_path.rglob("*.tmp"))


def test_processes_may_share_a_cache(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: output(tmp_path, COUNT), range(3)))
    assert set(found) <= {"1 0 0", "0 1 0"} and "1 0 0" in found
    assert len(files(tmp_path)) == 1 and not list(tmp_path.rglob("*.tmp"))
    assert output(tmp_path, COUNT) == "0 1 0"


def test_threads_compile_once(tmp_path: Path) -> None:
    code = """
import threading
x, y, out = e.tensors(1024)
threads = [threading.Thread(target=e.run, args=(x, y, out, 1024)) for _ in range(6)]
for each in threads: each.start()
for each in threads: each.join()
print(compile_counts()["compiled"], e.SCALE_ADD.launches)
"""
    assert output(tmp_path, code) == "1 6"


def test_ptx_of_a_fixed_version(tmp_path: Path) -> None:
    assert output(tmp_path, COUNT, RUDA_CUDA_COMPILER="ptx", RUDA_PTX_VERSION="8.0") == "1 0 0"
    (file,) = files(tmp_path)
    assert b".version 8.0" in file.read_bytes()
    # Without a fixed one the driver's newest is the bound.
    values = {"RUDA_CUDA_COMPILER": "ptx", "RUDA_DOUBLE_DRIVER_VERSION": "12020"}
    assert output(tmp_path, COUNT, **values) == "1 0 0"
    assert any(b".version 8.2" in each.read_bytes() for each in files(tmp_path))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"RUDA_CUDA_COMPILER": "gcc"}, "got 'gcc', wanted one of: cubin, ptx, nvrtc"),
        ({"RUDA_PTX_VERSION": "8"}, "got '8', wanted MAJOR.MINOR"),
        ({"RUDA_PTX_VERSION": "7.0"}, "got 7.0, but sm_90 needs at least PTX 7.8"),
        ({"RUDA_PTX_VERSION": "9.9"}, "got 9.9, but the compiler knows PTX up to"),
        ({"RUDA_PTX_VERSION": "8.4", "RUDA_CUDA_COMPILER": "ptx",
          "RUDA_DOUBLE_DRIVER_VERSION": "12020"}, "got 8.4, but the driver compiles PTX up to 8.2"),
        ({"RUDA_CUDA_COMPILER": "nvrtc"}, "this kernel is written in Triton only"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_errors_before_the_launch(
    tmp_path: Path, values: dict[str, str], words: str
) -> None:
    text = output(tmp_path, "x, y, out = e.tensors()\n"
                  "print(error_of(lambda: e.run(x, y, out, 1000)))", **values)  # fmt: skip
    assert words in text, text
    assert not files(tmp_path)


def test_an_architecture_that_the_compiler_does_not_know_is_named(tmp_path: Path) -> None:
    code = "x, y, out = e.tensors()\nprint(error_of(lambda: e.run(x, y, out, 1000)))"
    text = output(tmp_path, code, RUDA_DOUBLE_COMPUTE_CAPABILITY="14.0")
    text = text[text.index("[example.scale_add] triton ") :]  # behind what Triton prints by itself
    assert "does not compile example_kernels:scale_add for sm_140" in text, text
    assert not files(tmp_path)


def test_without_triton_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else found(name, *rest)
x, y, out = e.tensors()
print(error_of(lambda: e.run(x, y, out, 1000), rr.UnsupportedError))
"""
    text = output(tmp_path, code)
    assert text.startswith("[example.scale_add] has to be compiled, and Triton is not installed")
    assert "pip install 'ruda-runtime[compile]'" in text


def test_a_kernel_that_does_not_compile_names_compiler_and_source(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n"
        "    tl.store(x, tl.nothing(3))\n"
    )
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
from ruda_runtime.kernel import Kernel
k = Kernel("broken.f", "broken:f", {{"x": "*fp32"}})
try:
    k(1, rr.empty(1))
except rr.RudaRuntimeError as error:
    print(error, type(error.__cause__).__name__)
"""
    text = output(tmp_path, code)
    assert text.startswith("[broken.f] triton ") and "does not compile broken:f for sm_90" in text
    assert text.endswith("CompilationError") or "AttributeError" in text


NVRTC = """
from ruda_runtime.kernel import CudaSource
from ruda_runtime.kernel.nvrtc_compiler import compile_kernel
from ruda_runtime.kernel.settings import CompileOptions
from ruda_runtime.launch import Specialisation
text = 'extern "C" __global__ void put(float* x, int n) { if (threadIdx.x < n) x[0] = V; }'
wanted = Specialisation("cuda:put", (("x", "*fp32"), ("n", "i32"), ("V", "constexpr")),
                        (("V", 7),), (), 4, 2)
def compile(text=text, kind="cubin"):
    return compile_kernel("cpp.put", CudaSource(text, "put"), wanted, 90, CompileOptions(kind))
"""


@pytest.mark.parametrize("target", ["host", "cuda"])
def test_cuda_cpp_is_compiled_by_nvrtc(tmp_path: Path, target: str) -> None:
    code = """
rr.devices()
try:
    cubin, ptx = compile(), compile(kind="ptx")
except rr.UnsupportedError as error:
    assert str(error).startswith("[cpp.put]") and "pip install" in str(error)
else:
    assert cubin.image.startswith(b"\\x7fELF") and cubin.compiler.startswith("nvrtc 1")
    assert b".entry put(" in ptx.image and not ptx.image.endswith(b"\\0")
    message = error_of(lambda: compile("void put() { nothing }"))
    assert message.startswith("[cpp.put] NVRTC does not compile put for sm_90: put.cu(1): error")
"""
    driver = "double" if target == "cuda" else ""
    output(tmp_path, NVRTC + code, RUDA_TARGET=target, RUDA_CUDA_DRIVER=driver)


def test_without_cuda_bindings_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = """
import importlib.util
importlib.util.find_spec = lambda *rest: None
assert "pip install 'ruda-runtime[cuda]'" in error_of(compile, rr.UnsupportedError)
"""
    output(tmp_path, NVRTC + code, RUDA_TARGET="host", RUDA_CUDA_DRIVER="")


def test_this_version_of_triton_is_covered() -> None:
    from importlib.metadata import version

    assert (3, 6) <= tuple(int(part) for part in version("triton").split(".")[:2]) <= (3, 9)
    assert sys.version_info >= (3, 11)
