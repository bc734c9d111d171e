"""Bundles: built without a GPU, used without a compiler, checked on both ways."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import PRELUDE, run_script

pytest.importorskip("triton")

KERNELS = """
import triton
import triton.language as tl
@triton.jit
def add(x, out, count, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    inside = places < count
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + 1.0
    tl.store(out + places, value.to(out.dtype.element_ty), mask=inside)
"""
LAUNCH = """
from ruda_runtime.launch import Definition, Specialisation, contiguous_view, specialisations
ADD = Definition("sample.add", "ruda_sample.family.kernels:add",
                 {"x": "*fp32|bf16", "out": "*fp32|bf16", "count": "i32%16", "BLOCK": "constexpr"})
def bundle():
    launches = []
    for dtype in ("float32", "bfloat16"):
        for pointer in (0, 4):
            x = contiguous_view(pointer, dtype, (64,))
            launches.append(ADD((1,), x=x, out=x, count=64, BLOCK=64))
    return specialisations(launches)
"""
# A process that has a bundle and no Triton.
USE = (
    PRELUDE
    + """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else found(name, *rest)
from ruda_sample.family.launch import ADD
from ruda_runtime.kernel import Kernel, compile_counts
k = Kernel.of(ADD)
x, out = rr.Tensor.from_numpy(np.arange(64, dtype=np.float32)), rr.empty(64)
def add(x=x, count=64, block=64):
    k(1, x, out, count, BLOCK=block)
"""
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package ruda_sample, which has one kernel."""
    root = tmp_path_factory.mktemp("sample")
    family = root / "ruda_sample" / "family"
    family.mkdir(parents=True)
    for folder in (family.parent, family):
        (folder / "__init__.py").write_text("")
    (family / "kernels.py").write_text(KERNELS)
    (family / "launch.py").write_text(LAUNCH)
    return root


def run(package: Path, code: str, prelude: str, **values: str) -> subprocess.CompletedProcess[str]:
    values.setdefault("RUDA_DOUBLE_RECORD_ONLY", "1")
    return run_script(package / "cache", code, prelude=prelude, PYTHONPATH=str(package), **values)


def command(package: Path, *arguments: str, **values: str) -> subprocess.CompletedProcess[str]:
    code = f"sys.argv = ['ruda', *{list(arguments)!r}]\nfrom ruda_runtime.cli import main\nmain()"
    return run(package, code, "import sys\n", RUDA_TARGET="host", RUDA_CUDA_DRIVER="", **values)


@pytest.fixture(scope="module")
def built(package: Path) -> Path:
    output = package / "bundle"
    done = command(package, "bundle", "build", "--package", "ruda_sample",
                   "--arch", "sm_75", "sm_90", "--output", str(output))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{output}: 6 kernels, 2 left out" in done.stdout
    return output


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "bundle"))


def test_the_manifest_says_what_it_was_built_from(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    assert manifest["abi"] == 10 and manifest["api"] == {"tensor": 10}
    assert manifest["architectures"] == [75, 90] and manifest["compiler"].startswith("triton 3.")
    assert set(manifest["packages"]) == {"ruda-sample"}
    assert {"source_revision", "ptx_version", "image"} <= manifest.keys()
    for entry in manifest["kernels"]:
        assert entry["name"] == "sample.add" and entry["signature"]["BLOCK"] == "constexpr"
        assert (built / "kernels" / entry["file"]).stat().st_size > 500
    left_out = {(each["name"], each["architecture"], each["reason"])
                for each in manifest["left_out"]}  # fmt: skip
    assert left_out == {("sample.add", 75, "bfloat16 needs sm_80")}


def test_it_is_used_without_triton(package: Path, built: Path) -> None:
    code = """
add()
add(x.slice(0, 1, 64), 32)  # less is promised
add(x, 63)
print(compile_counts(), "triton" in sys.modules)
text = error_of(lambda: add(block=32), rr.UnsupportedError)
assert "has no code for it on sm_90 with (x: *fp32" in text and "BLOCK=32" in text, text
"""
    done = run(package, code, USE, RUDA_BUNDLE=str(built))
    assert done.returncode == 0, done.stderr
    wanted = {"compiled": 0, "memory_hits": 1, "disk_hits": 0, "bundle_hits": 2}
    assert done.stdout.strip() == f"{wanted} False"


def test_it_gives_the_same_numbers(package: Path, built: Path) -> None:
    code = "add()\nassert (out.numpy() == np.arange(64) + 1).all()"
    done = run(package, code, USE, RUDA_BUNDLE=str(built), RUDA_DOUBLE_RECORD_ONLY="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("abi", 9, "was built for abi 9, this ruda-runtime has abi 10"),
        ("api", {"tensor": 9}, "was built for api {'tensor': 9}, this ruda-runtime has api"),
        ("format", 2, "was built for format 2"),
        ("kernels", None, "cannot be read as a bundle"),
    ],
)
def test_a_bundle_that_does_not_fit_is_an_error(
    package: Path, copied: Path, name: str, value: object, words: str
) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps({**manifest, name: value}))
    done = run(package, "print(error_of(add))", USE, RUDA_BUNDLE=str(copied))
    assert words in done.stdout, done.stderr
    assert command(package, "bundle", "verify", str(copied)).returncode == 1


def test_a_changed_source_is_an_error(package: Path, copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    for entry in manifest["kernels"]:
        entry["source"] = "0" * 64
    (copied / "manifest.json").write_text(json.dumps(manifest))
    done = run(package, "print(error_of(add))", USE, RUDA_BUNDLE=str(copied))
    assert "was built from source 0000000000000000…, the installed" in done.stdout, done.stderr


def test_damaged_files_are_found(package: Path, copied: Path) -> None:
    assert command(package, "bundle", "verify", str(copied)).returncode == 0
    for file in (copied / "kernels").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    done = run(package, "print(error_of(add))", USE, RUDA_BUNDLE=str(copied))
    assert "is damaged: its checksum is not the manifest's" in done.stdout, done.stderr
    (copied / "extra").write_text("")
    done = command(package, "bundle", "verify", str(copied))
    assert done.returncode == 1
    assert "extra: not in SHA256SUMS" in done.stderr and "its checksum is" in done.stderr


def test_no_bundle_there(package: Path, tmp_path: Path) -> None:
    done = run(package, "print(error_of(add))", USE, RUDA_BUNDLE=str(tmp_path))
    assert f"[RUDA_BUNDLE] {tmp_path} cannot be read as a bundle" in done.stdout, done.stderr


def test_the_command(package: Path, built: Path, tmp_path: Path) -> None:
    listed = command(package, "bundle", "list", str(built)).stdout
    assert "sample.add  sm_90  4" in listed and "bfloat16 needs sm_80" in listed
    done = command(package, "bundle", "build", "--arch", "sm_5", "--output", str(tmp_path / "b"))
    assert done.returncode == 1 and "[architecture] got 'sm_5'" in done.stderr
    done = command(package, "bundle", "build", "--package", "ruda_sample", "--arch", "sm_77",
                   "--output", str(tmp_path / "b"))  # fmt: skip
    assert done.returncode == 1 and "sample.add for sm_77: [sample.add] triton" in done.stderr
    assert not (tmp_path / "b").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    done = command(package, "bundle", "build", "--package", "ruda_sample",
                   "--output", str(tmp_path / "full"))  # fmt: skip
    assert done.returncode == 1 and "holds no bundle" in done.stderr
    assert (tmp_path / "full" / "file").read_text() == "kept"


def test_kernels_that_do_not_compile_are_named(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "ruda_broken"
    shutil.copytree(package / "ruda_sample", broken)
    kernels = broken / "family" / "kernels.py"
    kernels.write_text(KERNELS.replace("+ 1.0", "+ tl.nothing"))
    launch = broken / "family" / "launch.py"
    launch.write_text(LAUNCH.replace("ruda_sample", "ruda_broken"))
    done = command(tmp_path, "bundle", "build", "--package", "ruda_broken", "--arch", "sm_90",
                   "--output", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 1
    assert "[bundle] 4 of 4 kernels do not compile" in done.stderr
    assert "sample.add for sm_90: [sample.add] triton" in done.stderr
    assert not (tmp_path / "out").exists()


TWO = """
from ruda_runtime.launch import Definition, Specialisation, contiguous_view, specialisations
PLAIN = Definition("twins.add", "ruda_twins.family.kernels:add",
                   {"x": "*fp32|bf16", "out": "*fp32|bf16", "count": "i32", "BLOCK": "constexpr"})
DIVISIBLE = Definition("twins.add_divisible", PLAIN.function,
                       {**PLAIN.parameters, "count": "i32%16"})
def bundle():
    launches = []
    for dtype in ("float32", "bfloat16"):
        x = contiguous_view(0, dtype, (64,))
        for definition in (PLAIN, DIVISIBLE):
            launches.append(definition((1,), x=x, out=x, count=64, BLOCK=64))
    return specialisations(launches)
"""


@pytest.fixture(scope="module")
def twins(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with two definitions of one function."""
    root = tmp_path_factory.mktemp("twins")
    shutil.copytree(package / "ruda_sample", root / "ruda_twins")
    (root / "ruda_twins" / "family" / "launch.py").write_text(TWO)
    return root


def test_definitions_of_one_function_are_told_apart(twins: Path) -> None:
    output = twins / "bundle"
    done = command(twins, "bundle", "build", "--package", "ruda_twins", "--arch", "sm_90",
                   "--output", str(output))  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernels = json.loads((output / "manifest.json").read_text())["kernels"]
    assert [each["name"] for each in kernels] == ["twins.add", "twins.add_divisible"] * 2
    for each in kernels:
        promised = '["x","out","count"]' in each["specialisation"]
        assert promised == (each["name"] == "twins.add_divisible"), each["specialisation"]
    use = USE.replace("ruda_sample", "ruda_twins").replace("ADD", "DIVISIBLE")
    done = run(twins, "add()\nprint(compile_counts()['bundle_hits'])", use, RUDA_BUNDLE=str(output))
    assert done.stdout == "1\n", done.stderr


def test_a_sample_has_every_kernel_and_what_an_architecture_cannot_do(twins: Path) -> None:
    output = twins / "sample"
    done = command(twins, "bundle", "build", "--package", "ruda_twins", "--sample",
                   "--arch", "sm_75", "sm_90", "--output", str(output))  # fmt: skip
    assert f"{output}: 4 kernels, 2 left out" in done.stdout, done.stderr
    manifest = json.loads((output / "manifest.json").read_text())
    names = ["twins.add", "twins.add_divisible"]
    for architecture, kind in ((75, "*fp32"), (90, "*bf16")):
        entries = [each for each in manifest["kernels"] if each["architecture"] == architecture]
        assert [each["name"] for each in entries] == names
        assert {each["signature"]["x"] for each in entries} == {kind}
    left_out = [(each["name"], each["architecture"]) for each in manifest["left_out"]]
    assert left_out == [(name, 75) for name in names]


def test_a_specialisation_that_no_definition_allows_is_named(twins: Path) -> None:
    code = """
from ruda_runtime.kernel.discovery import kernel_of
from ruda_twins.family.launch import bundle
for change in ({"signature": (("x", "*fp32"),)}, {"divisible": ("count",)},
               {"signature": (("x", "*fp64"), *bundle()[0].signature[1:])}):
    text = error_of(lambda: kernel_of(bundle()[0]._replace(**change)), rr.RudaValueError)
    assert "no Definition of it allows" in text, text
"""
    done = run(twins, code, PRELUDE)
    assert done.returncode == 0, done.stderr
