"""Strided views on the GPU: by a kernel where the driver would need many copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import KERNELS, PRELUDE, run_script

COUNT = """
from ruda_runtime.kernel import defined_kernels
from ruda_runtime.testing import counters, reports
def launches():
    return {kernel.name: kernel.launches for kernel in defined_kernels()}["copies.gather"]
def big(dtype="float32", shape=(40, 3, 37)):
    dtype = rr.empty(1, dtype).dtype
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
"""


def test_the_kernel_copies_what_needs_many_planes(kernel_passes: Callable[..., str]) -> None:
    kernel_passes(
        COUNT
        + """
for number, dtype in enumerate(("int8", "bfloat16", "float32", "float64", "bool")):
    array = big(dtype)
    x = rr.Tensor.from_numpy(array)
    for order in ((2, 1, 0), (2, 0, 1)):
        assert (x.permute(order).contiguous().numpy() == array.transpose(order)).all(), dtype
    part = x.slice(2, 1, 37, 2).slice(0, 3, 40)  # an address that is not divisible by 16
    assert (part.contiguous().numpy() == array[3:, :, 1::2]).all(), dtype
    assert launches() == 3 * (number + 1)
array = np.arange(2 * 3 * 4 * 5 * 2 * 3).reshape(2, 3, 4, 5, 2, 3)
x = rr.Tensor.from_numpy(array)
for order in ((5, 4, 3, 2, 1, 0), (4, 2, 0, 5, 3, 1)):
    assert (x.permute(order).contiguous().numpy() == array.transpose(order)).all()
assert launches() == 17
line = rr.Tensor.from_numpy(np.arange(20000, dtype=np.float32))
assert (line.slice(0, 0, 20000, 2).contiguous().numpy() == np.arange(0, 20000, 2)).all()
assert launches() == 18 and reports() == []
"""
    )


def test_the_driver_copies_what_it_can_do_well(kernel_passes: Callable[..., str]) -> None:
    kernel_passes(
        COUNT
        + """
array = big()
x = rr.Tensor.from_numpy(array)
cases = [(x.permute(1, 0, 2), array.transpose(1, 0, 2)), (x.slice(2, 5, 20), array[:, :, 5:20]),
         (x.slice(0, 0, 2).permute(2, 1, 0).slice(0, 0, 5), array[:2].T[:5])]
many = np.arange(128).reshape((2,) * 7)
cases.append((rr.Tensor.from_numpy(many).permute(6, 5, 4, 3, 2, 1, 0), many.T))  # seven dimensions
for view, wanted in cases:
    assert (view.contiguous().numpy() == wanted).all()
assert launches() == 0 and compile_counts()["compiled"] == 0
"""
    )


def test_a_graph_keeps_the_kernel(kernel_passes: Callable[..., str]) -> None:
    kernel_passes(
        COUNT
        + """
array = big()
x = rr.Tensor.from_numpy(array)
with rr.Graph.capture(rr.Stream()) as graph:
    turned = x.permute(2, 1, 0).contiguous()
assert graph.nodes == ("copies.gather",)
x.copy_from(array + 1)
rr.synchronize()
graph.replay()
assert (turned.numpy() == array.T + 1).all()
"""
    )


def test_without_code_for_it_the_driver_copies(cache: Path) -> None:
    code = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else found(name, *rest)
array = big()
x = rr.Tensor.from_numpy(array)
for _ in range(2):
    before = counters()["copies"]
    assert (x.permute(2, 1, 0).contiguous().numpy() == array.T).all()
    assert counters()["copies"] == before + 111 + 1  # and the one that reads it back
assert launches() == 0 and reports() == []
"""
    done = run_script(cache / "empty", COUNT + code, prelude=PRELUDE)
    assert done.returncode == 0, done.stderr


def test_a_bundle_has_the_code(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    bundle = tmp_path / "bundle"
    build = f"""
from pathlib import Path
from ruda_runtime.kernel.bundle_build import build
report = build(Path({str(bundle)!r}), [90], packages=["ruda_runtime"])
assert (report.compiled, report.left_out) == (8, [])
"""
    values = {"RUDA_TARGET": "host", "RUDA_CUDA_DRIVER": ""}
    done = run_script(tmp_path, build, prelude=KERNELS, **values)
    assert done.returncode == 0, done.stderr
    use = """
array = big()
x = rr.Tensor.from_numpy(array)
assert (x.permute(2, 1, 0).contiguous().numpy() == array.T).all() and launches() == 1
assert compile_counts()["bundle_hits"] == 1 and "triton" not in sys.modules
"""
    done = run_script(tmp_path, COUNT + use, prelude=KERNELS, RUDA_BUNDLE=str(bundle))
    assert done.returncode == 0, done.stderr
