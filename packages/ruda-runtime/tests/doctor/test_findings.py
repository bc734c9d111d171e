"""Each finding: what it says and what it advises."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ruda_runtime import doctor, inventory
from ruda_runtime._abi import PROVIDES
from ruda_runtime.doctor import findings, report
from ruda_runtime.doctor.imports import Imports
from ruda_runtime.kernel import bundle_use

from .conftest import Installation

Only = Callable[[dict[str, Any]], dict[str, str]]


def test_an_unknown_variable(installation: Installation, only: Only) -> None:
    found = installation.collect(RUDA_TRAGET="host")
    finding = only(found)
    assert finding["code"] == "setting-unknown"
    assert "did you mean RUDA_TARGET?" in finding["message"]
    assert finding["advice"] == "Correct the name, or unset RUDA_TRAGET"
    assert found["settings"]["ruda"][-1]["value"] == "host"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUDA_POISON", "yes"),  # its import fails: said once, not by every package
        ("RUDA_AUTOTUNE", "on"),
        ("RUDA_TARGET", "gpu"),
        ("RUDA_TORCH_LIBRARY", "/nowhere.so"),
        ("RUDA_QUICK_IMPORT", "no"),
    ],
)
def test_a_wrong_value(installation: Installation, only: Only, name: str, value: str) -> None:
    finding = only(installation.collect(**{name: value}))
    assert finding["code"] == "setting-invalid"
    assert finding["message"].startswith(f"[{name}] got {value!r}, wanted ")
    assert finding["advice"] == f"Set {name} to an allowed value, or unset it"


def test_variables_that_contradict_each_other(installation: Installation, only: Only) -> None:
    finding = only(installation.collect(RUDA_ASYNC="0", RUDA_TORCH_ASYNC="1"))
    assert finding["code"] == "setting-invalid" and "RUDA_ASYNC is '0'" in finding["message"]


def test_an_import_that_fails(installation: Installation, only: Only) -> None:
    installation.write("ruda_dnn", "raise ImportError('libsomething.so: cannot open')\n")
    installation.write("ruda_torch", "import ruda_dnn\n")  # fails for the same reason
    installation.write("ruda_finetune", "import ruda_torch\n")
    found = installation.collect()
    finding = only(found)
    assert finding["code"] == "import-failed"
    assert finding["message"] == "ruda-dnn cannot be imported: libsomething.so: cannot open"
    assert finding["advice"].endswith("pip install --upgrade --force-reinstall ruda-dnn")
    assert [row["imports"] for row in found["packages"]] == [True, True, False, False, False]


def test_an_import_that_says_how_to_repair_it(installation: Installation, only: Only) -> None:
    installation.write("ruda_dnn", "raise ImportError('[import] x. Repair: python -m pip y')\n")
    finding = only(installation.collect())
    assert finding["message"].endswith("Repair: python -m pip y")
    assert finding["advice"] == "The message says how to repair it"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 4)", "was killed by SIGILL"),
        ("import os, sys; sys.stderr.write('bad\\n'); sys.stderr.flush(); os._exit(3)",
         "ended with code 3: bad"),
    ],
)  # fmt: skip
def test_an_import_that_kills_the_process(
    installation: Installation, only: Only, code: str, how: str
) -> None:
    installation.write("ruda_torch", code)
    found = installation.collect()
    finding = only(found)
    assert finding["code"] == "import-crashed"
    assert finding["message"] == f"the process that imports the packages {how}, at ruda-torch"
    assert finding["advice"].endswith("--force-reinstall ruda-torch")
    # What was found before it is in the report.
    assert found["target"]["chosen"] == "host"
    assert [row["imports"] for row in found["packages"]] == [True, True, True, None, None]


def test_an_import_that_does_not_end(
    installation: Installation, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ruda_runtime.doctor.imports._SECONDS", 3.0)
    installation.write("ruda_finetune", "import time; time.sleep(60)")
    finding = only(installation.collect())
    assert finding["code"] == "import-crashed"
    assert "did not end within 3 seconds, at ruda-finetune" in finding["message"]


def test_what_an_import_prints_does_not_matter(installation: Installation) -> None:
    installation.write("ruda_dnn", "print('hello'); print('@ruda-doctored'); print(chr(0x1e))\n")
    assert installation.collect()["ok"] is True


def test_abi_numbers_that_differ(installation: Installation, only: Only) -> None:
    installation.abi("ruda_dnn", {"ruda-runtime": {"tensor": 11}, "ruda-blas": {"tensor": 10}})
    found = installation.collect()
    finding = only(found)
    assert finding["code"] == "abi-mismatch"
    assert finding["message"] == ("ruda-dnn requires tensor 11 of ruda-runtime, which provides 10")
    assert finding["advice"].endswith("--force-reinstall ruda-dnn ruda-runtime")
    (row,) = [row for row in found["abi"] if not row["fits"]]
    assert row == {"package": "ruda-dnn", "interface": "tensor", "required": 11,
                   "provider": "ruda-runtime", "provided": 10, "fits": False}  # fmt: skip


def test_an_interface_that_is_not_provided(installation: Installation, only: Only) -> None:
    installation.abi("ruda_torch", {"ruda-dnn": {"router": 1}})
    finding = only(installation.collect())
    assert "requires router 1 of ruda-dnn, which provides nothing" in finding["message"]


def test_a_native_module_of_another_abi(installation: Installation, only: Only) -> None:
    (installation.folder / "ruda_blas" / "_native.py").write_text("abi_version = 9\n")
    installation.write("ruda_blas", "from . import _native\n")
    finding = only(installation.collect())
    assert finding["code"] == "abi-mismatch"
    assert "of ruda-blas (native module), which provides 9" in finding["message"]
    assert finding["advice"].endswith("--force-reinstall ruda-blas")


def test_a_package_below_is_missing(
    installation: Installation, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ruda_torch", "ruda_finetune"):
        installation.abi(name, {"ruda-runtime": {"tensor": 10}})
    found = inventory.package_folder
    monkeypatch.setattr(
        inventory, "package_folder", lambda name: None if name == "ruda-blas" else found(name)
    )
    finding = only(installation.collect())
    assert finding["code"] == "package-missing"
    assert finding["message"] == "ruda-dnn needs ruda-blas, which is not installed"
    assert finding["advice"].endswith("--force-reinstall ruda-dnn")


def test_two_versions_in_one_place(
    installation: Installation, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "installed", lambda name: {"ruda-dnn": "0.10.7"}.get(name))
    finding = only(installation.collect())
    assert finding["code"] == "package-mixed"
    assert "the files are version 0.10.0, the installation says 0.10.7" in finding["message"]


@pytest.mark.skipif(os.access("/proc/driver/nvidia", os.F_OK), reason="there is a driver")
def test_a_target_that_cannot_be_used(installation: Installation, only: Only) -> None:
    code = "import ruda_runtime; ruda_runtime.devices()"  # as ruda-torch does at its import
    installation.write("ruda_torch", code)
    found = installation.collect(RUDA_TARGET="cuda")
    finding = only(found)
    assert finding["code"] == "target" and finding["message"].startswith("no device can be used: ")
    assert "RUDA_TARGET=host" in finding["advice"]
    assert found["target"]["chosen"] is None


@pytest.mark.parametrize("place", ["file", "under a file"])
def test_a_cache_that_cannot_be_written(
    installation: Installation, only: Only, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" if place == "file" else tmp_path / "file" / "cache"
    finding = only(installation.collect(RUDA_CACHE_DIR=str(folder)))
    assert finding["code"] == "cache-unwritable" and str(folder) in finding["message"]
    assert "RUDA_CACHE_DIR" in finding["advice"]


def test_no_folder_for_caches(
    installation: Installation, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "cache_directory", lambda environment: None)
    finding = only(installation.collect())
    assert finding["code"] == "cache-unwritable" and "no folder" in finding["message"]


def write_bundle(folder: Path, **changed: Any) -> dict[str, Any]:
    manifest = {"format": bundle_use.FORMAT, "abi": 10, "api": dict(PROVIDES),
                "architectures": [90], "source_revision": "abc", **changed}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps({**manifest, "kernels": []}))
    return manifest


def test_a_bundle_that_is_none(installation: Installation, only: Only, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    for place in (tmp_path, tmp_path / "nowhere"):
        found = installation.collect(RUDA_BUNDLE=str(place))
        finding = only(found)
        assert finding["code"] == "bundle-unusable"
        assert finding["message"].startswith(f"[RUDA_BUNDLE] {place} cannot be read as a bundle")
        assert found["bundle"]["manifest"] is None


def test_a_bundle_of_another_abi(installation: Installation, only: Only, tmp_path: Path) -> None:
    write_bundle(tmp_path, abi=9)
    finding = only(installation.collect(RUDA_BUNDLE=str(tmp_path)))
    assert finding["code"] == "bundle-unusable"
    assert "was built for abi 9, this ruda-runtime has abi 10" in finding["message"]


def test_a_bundle_that_is_one(installation: Installation, tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    found = installation.collect(RUDA_BUNDLE=str(tmp_path))
    assert found["ok"], found["findings"]
    assert found["bundle"] == {
        "path": str(tmp_path), "manifest": manifest, "kernels": 0, "error": None,
    }  # fmt: skip
    assert "0 kernels" in doctor.as_text(found)


@pytest.fixture
def on_cuda(installation: Installation) -> dict[str, Any]:
    """A report as of a machine whose target is cuda."""
    found = installation.collect()
    found["target"]["chosen"] = "cuda"
    found["compilers"] = [
        {"name": name, "present": True, "version": "3.9.0", "location": "/x"}
        for name in ("triton", "ptxas", "nvrtc", "cuda-bindings")
    ]
    return found


def test_compilers_for_cuda(on_cuda: dict[str, Any]) -> None:
    def codes() -> list[str]:
        return [finding["code"] for finding in findings.find(on_cuda, Imports())]

    triton = on_cuda["compilers"][0]
    assert codes() == []
    for version, fits in (("3.5.1", False), ("3.6.0", True), ("3.10.0", False), ("4.0", False),
                          ("main", True)):  # fmt: skip
        triton["version"] = version
        assert codes() == ([] if fits else ["compiler-version"]), version
    triton.update(present=False, version=None, location=None)
    assert codes() == ["compiler-missing"]
    on_cuda["bundle"]["path"] = "/bundle"
    assert codes() == []
    on_cuda["bundle"]["path"] = None
    nvrtc = next(row for row in on_cuda["compilers"] if row["name"] == "nvrtc")
    triton.update(present=True)
    nvrtc.update(present=False)
    assert codes() == []
    rows = on_cuda["settings"]["ruda"]
    next(row for row in rows if row["name"] == "RUDA_CUDA_COMPILER")["value"] = "nvrtc"
    assert codes() == ["compiler-missing"]
    on_cuda["target"]["chosen"] = "host"  # the host's kernels are compiled already
    assert codes() == []


def test_a_gpu_that_is_not_used(installation: Installation, only: Only) -> None:
    found = installation.collect()
    found["driver"]["gpus"] = [
        {"name": "H200", "compute_capability": [9, 0], "memory_total": 10**9}
    ]
    assert findings.find(found, Imports()) == []  # RUDA_TARGET=host was asked for
    found["target"].update(requested="auto", why="cuda-bindings is not installed")
    found.update(findings=findings.find(found, Imports()), ok=False)
    finding = only(found)
    assert finding["code"] == "gpu-unused"
    assert finding["message"] == (
        "there is a GPU (H200), but the target is host: cuda-bindings is not installed"
    )


def test_every_finding_has_advice_in_the_text(installation: Installation) -> None:
    found = installation.collect(RUDA_A="1", RUDA_POISON="x", RUDA_CACHE_DIR="/dev/null/x")
    text = doctor.as_text(found)
    assert f"{len(found['findings'])} findings:" in text and len(found["findings"]) == 3
    for number, finding in enumerate(found["findings"], 1):
        assert f"{number}. {finding['message']}\n   {finding['advice']}. (" in text
