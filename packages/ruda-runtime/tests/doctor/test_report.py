"""The report where everything fits, its layout, and the ways to get it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import ruda_runtime as rr
from ruda_runtime import doctor, settings

from .conftest import ABOVE, Installation

LAYOUT = {
    "schema": int,
    "ok": bool,
    "findings": [{"code": str, "message": str, "advice": str}],
    "system": {"platform": str, "machine": str, "libc": str, "python": str, "executable": str,
               "others": dict},
    "packages": [{"name": str, "installed": bool, "version": str, "metadata_version": str,
                  "location": str, "imports": bool, "error": str}],
    "abi": [{"package": str, "interface": str, "required": int, "provider": str, "provided": int,
             "fits": bool}],
    "target": {"requested": str, "chosen": str, "why": str, "error": str,
               "devices": [{"name": str, "target": str, "index": int, "compute_capability": list,
                            "multiprocessors": int, "max_threads": int, "memory_total": int,
                            "memory_free": int, "driver_version": str, "capabilities": list}]},
    "driver": {"library": str, "version": str, "error": str,
               "gpus": [{"name": str, "compute_capability": list, "memory_total": int}]},
    "compilers": [{"name": str, "present": bool, "version": str, "location": str}],
    "bundle": {"path": str, "manifest": dict, "kernels": int, "error": str},
    "caches": {"path": str, "exists": bool, "writable": bool, "bytes": int,
               "folders": [{"name": str, "holds": str, "files": int, "bytes": int}]},
    "torch": {"version": str, "cuda": str, "git_version": str, "cxx11_abi": bool, "threads": int,
              "interop_threads": int},
    "cpu": {"name": str, "features": list, "cpus": int, "threads": int},
    "settings": {"ruda": [{"name": str, "package": str, "meaning": str, "allowed": str,
                           "value": str, "problem": str}],
                 "related": dict},
}  # fmt: skip


def check_layout(value: Any, layout: Any, at: str = "report") -> None:
    """Exactly these keys everywhere; a leaf has its type or is None."""
    if isinstance(layout, dict):
        assert set(value) == set(layout), at
        for name, inner in layout.items():
            check_layout(value[name], inner, f"{at}.{name}")
    elif isinstance(layout, list):
        assert isinstance(value, list), at
        for index, item in enumerate(value):
            check_layout(item, layout[0], f"{at}[{index}]")
    else:
        assert value is None or type(value) is layout, f"{at}: {value!r}"


def test_where_everything_fits(installation: Installation) -> None:
    report = installation.collect()
    assert report["findings"] == [] and report["ok"] is True
    check_layout(report, LAYOUT)
    assert json.loads(json.dumps(report)) == report
    names = ["ruda-runtime", *(name.replace("_", "-") for name in ABOVE)]
    assert [row["name"] for row in report["packages"]] == names
    assert all(row["imports"] and row["installed"] for row in report["packages"])
    assert {row["version"] for row in report["packages"]} == {rr.__version__, "0.10.0"}
    assert len(report["abi"]) == 1 + 1 + 2 + 3 + 4 and all(row["fits"] for row in report["abi"])
    native = report["abi"][0]
    assert native["provider"] == "ruda-runtime (native module)" and native["provided"] == 10
    assert (report["target"]["chosen"], report["target"]["requested"]) == ("host", "host")
    assert report["target"]["why"] == "RUDA_TARGET=host asks for it"
    (device,) = report["target"]["devices"]
    assert device["name"] == rr.devices()[0].name and device["memory_total"] > 0
    assert report["cpu"]["threads"] == len(os.sched_getaffinity(0)) == report["cpu"]["cpus"]
    assert [row["name"] for row in report["settings"]["ruda"]] == [
        setting.name for setting in settings.SETTINGS
    ]
    assert [row["name"] for row in report["compilers"]] == [
        "triton", "ptxas", "nvrtc", "cuda-bindings",
    ]  # fmt: skip


def test_the_report_for_people(installation: Installation) -> None:
    report = installation.collect(RUDA_NUM_THREADS="2", OMP_NUM_THREADS="3")
    text = doctor.as_text(report)
    for title in ("System", "Packages", "ABI", "Target", "CUDA driver", "Compilers",
                  "Kernel bundle", "Caches", "PyTorch", "CPU", "Settings"):  # fmt: skip
        assert f"\n{title}\n  " in "\n" + text, title
    assert text.endswith("No findings: everything fits.")
    assert re.search(r"RUDA_NUM_THREADS=2 +threads of the pool\n", text)
    assert "OMP_NUM_THREADS=3" in text and "host (asked for: host)" in text
    assert "2 threads" in text


def test_why_auto_chose(installation: Installation) -> None:
    for value in ("auto", ""):
        target = installation.collect(RUDA_TARGET=value)["target"]
        assert target["requested"] == "auto" and target["chosen"] in ("host", "cuda")
        assert "RUDA_TARGET" in target["why"]


def test_the_layout_is_the_same_where_nothing_works(installation: Installation) -> None:
    for name in ABOVE:
        installation.write(name, "import os; os._exit(7)\n")
    report = installation.collect(
        RUDA_CPU="fast", RUDA_XYZ="1", RUDA_BUNDLE="/nowhere", RUDA_CACHE_DIR="/dev/null/x"
    )
    check_layout(report, LAYOUT)
    assert report["target"]["chosen"] is None and report["cpu"]["threads"] is None
    assert doctor.as_text(report).count("\n") > 40


def test_a_package_that_is_not_there_is_no_finding(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ruda_runtime import inventory

    found = inventory.package_folder
    monkeypatch.setattr(
        inventory, "package_folder", lambda name: None if name == "ruda-finetune" else found(name)
    )
    report = installation.collect()
    assert report["ok"] is True
    assert report["packages"][-1]["installed"] is False
    assert "ruda-finetune  -       not installed" in doctor.as_text(report)


def test_on_the_drivers_double(installation: Installation) -> None:
    report = installation.collect(RUDA_CUDA_DRIVER="double", RUDA_TARGET="cuda")
    check_layout(report, LAYOUT)
    assert report["findings"] == []
    assert report["target"]["chosen"] == "cuda"
    (device,), (gpu,) = report["target"]["devices"], report["driver"]["gpus"]
    assert device["name"] == gpu["name"] and "double" in gpu["name"]
    assert list(device["compute_capability"]) == gpu["compute_capability"] == [9, 0]
    assert device["driver_version"] == report["driver"]["version"]
    assert "GPU 0: RUDA driver double" in doctor.as_text(report)


def test_caches(installation: Installation) -> None:
    report = installation.collect()
    assert report["caches"] == {
        "path": str(installation.cache), "exists": False, "writable": True, "bytes": 0,
        "folders": [],
    }  # fmt: skip
    assert not installation.cache.exists()  # looking makes nothing
    (installation.cache / "tuning").mkdir(parents=True)
    (installation.cache / "tuning" / "a.json").write_bytes(b"x" * 70)
    (installation.cache / "mine" / "deeper").mkdir(parents=True)
    (installation.cache / "mine" / "deeper" / "b").write_bytes(b"x" * 5)
    caches = installation.collect()["caches"]
    assert caches["exists"] and caches["bytes"] == 75
    assert caches["folders"] == [
        {"name": "mine", "holds": None, "files": 1, "bytes": 5},
        {"name": "tuning", "holds": "tuning records", "files": 1, "bytes": 70},
    ]


def test_the_build_of_torch_is_read_without_importing_it(installation: Installation) -> None:
    installation.write("torch", "raise ImportError('must not be imported')\n")
    (installation.folder / "torch" / "version.py").write_text(
        "__version__ = '2.13.0+cpu'\ncuda = None\ngit_version = 'abc'\n"
    )
    torch = installation.collect()["torch"]
    assert (torch["version"], torch["cuda"], torch["git_version"]) == ("2.13.0+cpu", None, "abc")
    assert torch["threads"] is None


COMMANDS = [["-m", "_ruda_command", "doctor"], ["-m", "ruda_runtime.doctor"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["ruda doctor", "python -m"])
def test_the_commands(installation: Installation, command: list[str]) -> None:
    status, report = installation.run_json(*command)
    assert status == 0 and report["ok"] is True, report["findings"]
    check_layout(report, LAYOUT)
    assert installation.run(*command).stdout.rstrip().endswith("No findings: everything fits.")
    done = installation.run(*command, RUDA_NUM_THREAD="2")
    assert done.returncode == 1
    assert "1. [RUDA_NUM_THREAD] no RUDA package reads this variable; did you mean" in done.stdout
    assert installation.run(*command, "--nonsense").returncode == 2


def test_help_names_the_command(installation: Installation) -> None:
    done = installation.run("-m", "_ruda_command", "--help")
    assert done.returncode == 0 and "doctor" in done.stdout
    assert done.stdout.startswith("Usage: ruda ")
    done = installation.run("-m", "_ruda_command", "--version")
    assert done.stdout == f"ruda-runtime {rr.__version__}\n"


def test_without_typer(installation: Installation) -> None:
    (installation.folder / "typer.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')\n"
    )
    done = installation.run("-m", "_ruda_command", "doctor")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "ruda: the command needs typer, which is not installed: python -m pip install "
        "'ruda-runtime[cli]'. Without it, `python -m ruda_runtime.doctor` prints the report\n"
    )
    assert installation.run("-m", "ruda_runtime.doctor").returncode == 0


def test_the_command_works_where_the_runtime_cannot_be_imported(
    installation: Installation,
) -> None:
    variables = {"RUDA_NUM_THREADS": "two"}
    status, report = installation.run_json("-m", "_ruda_command", "doctor", **variables)
    assert status == 1
    check_layout(report, LAYOUT)
    assert [finding["code"] for finding in report["findings"]] == ["setting-invalid"]
    assert report["packages"][0]["imports"] is False
    done = installation.run("-m", "_ruda_command", "bundle", "list", **variables)
    assert done.returncode == 1
    assert done.stderr.startswith("ruda: [RUDA_NUM_THREADS] got 'two', wanted a whole number")
    assert "`ruda doctor` reports on the installation" in done.stderr


def test_the_command_works_without_the_native_module(installation: Installation) -> None:
    whole = Path(rr.__file__).parent
    copied = installation.folder / "ruda_runtime"
    copied.mkdir()
    for path in whole.iterdir():
        if not path.name.startswith("_native."):
            (copied / path.name).symlink_to(path)
    status, report = installation.run_json("-m", "_ruda_command", "doctor")
    assert status == 1
    check_layout(report, LAYOUT)
    (finding,) = report["findings"]
    assert finding["code"] == "import-failed"
    assert finding["message"].startswith("ruda-runtime cannot be imported: cannot import name")
    assert finding["advice"].endswith("--force-reinstall ruda-runtime")


def test_the_probe_is_text_that_runs_by_itself() -> None:
    """It must not import the runtime before it reports on that."""
    source = Path(doctor.__file__).with_name("probe.py").read_text(encoding="utf-8")
    top = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    modules = {line.split()[1] for line in top}
    assert modules <= {"__future__", "typing", *sys.stdlib_module_names}
