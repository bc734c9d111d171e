"""What does not fit in a report, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ruda_runtime import settings
from ruda_runtime.doctor.imports import Imports

Finding = dict[str, str]

TRITON = ((3, 6), (3, 9))
"""The oldest and newest Triton that the kernels are written for."""


def find(report: dict[str, Any], imports: Imports) -> list[Finding]:
    """All findings, those first that others follow from."""
    found: list[Finding] = []
    for rule in (_settings, _packages, _abi, _target, _compilers, _caches, _bundle):
        found += rule(report, imports)
    return found


def _finding(code: str, message: str, advice: str) -> Finding:
    return {"code": code, "message": message, "advice": advice}


def _settings(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    for row in report["settings"]["ruda"]:
        if row["problem"] is None:
            continue
        if row["package"] is None:
            advice = f"Correct the name, or unset {row['name']}"
            yield _finding("setting-unknown", row["problem"], advice)
        else:
            advice = f"Set {row['name']} to an allowed value, or unset it"
            yield _finding("setting-invalid", row["problem"], advice)


def _packages(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    if imports.ended is not None:
        at, how = imports.ended
        yield _finding(
            "import-crashed",
            f"the process that imports the packages {how}, {f'at {at}' if at else 'at its start'}",
            f"Install it again for this machine: {_install(at)}"
            if at.startswith("ruda-")
            else "Please report this with the whole output",
        )
    # What is said already: an import fails again in every package above.
    said = [f"[{row['name']}]" for row in report["settings"]["ruda"] if row["problem"]]
    said += [text for text in [report["target"]["error"]] if text]
    for row in report["packages"]:
        error = row["error"]
        if error and not any(text in error for text in said):
            said.append(error)
            advice = "The message says how to repair it" if "Repair: " in error else (
                f"Install it again with what it needs: {_install(row['name'])}"
            )  # fmt: skip
            yield _finding("import-failed", f"{row['name']} cannot be imported: {error}", advice)
        both = (row["version"], row["metadata_version"])
        if None not in both and both[0] != both[1]:
            yield _finding(
                "package-mixed",
                f"{row['name']}: the files are version {both[0]}, the installation says {both[1]}",
                f"Two versions lie in one place or on one path: {_install(row['name'])}",
            )


def _abi(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    installed = {row["name"]: row for row in report["packages"]}
    for row in report["abi"]:
        if row["fits"]:
            continue
        provider = row["provider"]
        if provider in installed and not installed[provider]["installed"]:
            yield _finding(
                "package-missing",
                f"{row['package']} needs {provider}, which is not installed",
                f"Install it: {_install(row['package'])}",
            )
            continue
        provided = "nothing" if row["provided"] is None else row["provided"]
        yield _finding(
            "abi-mismatch",
            f"{row['package']} requires {row['interface']} {row['required']} of {provider}, which "
            f"provides {provided}",
            f"Install packages of one ABI: {_install(row['package'], provider)}",
        )


def _install(*names: str) -> str:
    distributions = dict.fromkeys(name.split(" ")[0] for name in names)
    return f"python -m pip install --upgrade --force-reinstall {' '.join(distributions)}"


def _target(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    target = report["target"]
    error = target["error"]
    known = settings.find("RUDA_TARGET")
    if error is not None and known is not None and known.problem(target["requested"]) is None:
        advice = "Repair that, or set RUDA_TARGET=host to compute on the CPU"
        yield _finding("target", f"no device can be used: {error}", advice)
    gpus = report["driver"]["gpus"]
    if gpus and target["chosen"] == "host" and target["requested"] == "auto":
        yield _finding(
            "gpu-unused",
            f"there is a GPU ({gpus[0]['name']}), but the target is host: {target['why']}",
            "Follow that, or set RUDA_TARGET=host where the CPU is meant",
        )


def _compilers(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    if report["target"]["chosen"] != "cuda":
        return
    compilers = {row["name"]: row for row in report["compilers"]}
    triton = compilers["triton"]
    if not triton["present"] and report["bundle"]["path"] is None:
        yield _finding(
            "compiler-missing",
            "the target is cuda, but there is neither Triton nor a kernel bundle",
            "Install Triton (python -m pip install triton), or set RUDA_BUNDLE to a bundle",
        )
    asked = next(
        (r["value"] for r in report["settings"]["ruda"] if r["name"] == "RUDA_CUDA_COMPILER"), None
    )
    if asked == "nvrtc" and not compilers["nvrtc"]["present"]:
        yield _finding(
            "compiler-missing",
            "RUDA_CUDA_COMPILER=nvrtc asks for NVRTC, which is not found",
            "Install it (python -m pip install nvidia-cuda-nvrtc), or unset RUDA_CUDA_COMPILER",
        )
    version = _version(triton["version"])
    if version is not None and not TRITON[0] <= version <= TRITON[1]:
        oldest, newest = (".".join(map(str, numbers)) for numbers in TRITON)
        yield _finding(
            "compiler-version",
            f"Triton {triton['version']} is installed; the kernels are written for {oldest} to "
            f"{newest}",
            f"Install one of those: python -m pip install 'triton=={newest}.*'",
        )


def _version(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def _caches(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    caches = report["caches"]
    if caches["path"] is None:
        yield _finding(
            "cache-unwritable",
            "there is no folder for caches: neither RUDA_CACHE_DIR nor a home directory",
            "Set RUDA_CACHE_DIR to a folder that can be written",
        )
    elif not caches["writable"]:
        yield _finding(
            "cache-unwritable",
            f"the folder for caches, {caches['path']}, cannot be written",
            "Make it writable, or set RUDA_CACHE_DIR to another folder",
        )


def _bundle(report: dict[str, Any], imports: Imports) -> Iterator[Finding]:
    bundle = report["bundle"]
    if bundle["error"] is not None:
        yield _finding(
            "bundle-unusable",
            bundle["error"],
            "Do that, point RUDA_BUNDLE at the folder of another bundle, or unset it",
        )
