"""The parts of the report that need no import of the stack."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ruda_runtime import inventory, settings
from ruda_runtime.cachefiles import cache_directory
from ruda_runtime.doctor.imports import Imports

_OTHERS = ("numpy", "ml_dtypes", "torch", "triton", "cuda-bindings", "cuda-core", "transformers",
           "safetensors", "typer")  # fmt: skip
_RELATED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TRITON_CACHE_DIR",
            "TRITON_PTXAS_PATH", "TORCH_DEVICE_BACKEND_AUTOLOAD", "XDG_CACHE_HOME")  # fmt: skip

CACHES = {
    "tuning": "tuning records",
    "kernels": "compiled device kernels",
    "nf4": "packed model weights",
    "hashes": "hashes of model files",
}


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def system() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "executable": sys.executable,
        "others": {name: installed(name) for name in _OTHERS},
    }


def packages(imports: Imports) -> list[dict[str, Any]]:
    rows = []
    for name in inventory.PACKAGES:
        folder = inventory.package_folder(name)
        running = inventory.stated(folder, "_version").get("__version__")
        said = imports.packages.get(name, {})
        rows.append({
            "name": name,
            "installed": folder is not None,
            "version": running,
            "metadata_version": installed(name),
            "location": str(folder) if folder else None,
            "imports": None if not said else said["error"] is None,
            "error": said["error"]["text"] if said.get("error") else None,
        })  # fmt: skip
    return rows


def abi(imports: Imports) -> list[dict[str, Any]]:
    """One row a requirement of an installed package, and one for each native module."""
    stated = {
        name: inventory.stated(folder, "_abi")
        for name in inventory.PACKAGES
        if (folder := inventory.package_folder(name))
    }
    rows = []
    for name, numbers in stated.items():
        native = imports.packages.get(name, {}).get("native_abi")
        if native is not None:
            wanted = numbers.get("PROVIDES", {}).get("tensor")
            rows.append(_row(name, "tensor", wanted, f"{name} (native module)", native))
        required = {**numbers.get("REQUIRES", {}), **numbers.get("REQUIRES_LATER", {})}
        for below, interfaces in required.items():
            provides = stated.get(below, {}).get("PROVIDES", {})
            for interface, number in interfaces.items():
                rows.append(_row(name, interface, number, below, provides.get(interface)))
    return rows


def _row(package: str, interface: str, required: Any, provider: str, provided: Any) -> dict:
    return {
        "package": package,
        "interface": interface,
        "required": required,
        "provider": provider,
        "provided": provided,
        "fits": required == provided,
    }


def target(imports: Imports, environment: Mapping[str, str]) -> dict[str, Any]:
    said = imports.facts.get("target", {})
    return {
        "requested": environment.get("RUDA_TARGET") or "auto",
        "chosen": said.get("chosen"),
        "why": said.get("why", "ruda_runtime cannot be imported"),
        "error": said.get("error"),
        "devices": said.get("devices", []),
    }


def driver(imports: Imports) -> dict[str, Any]:
    said = imports.facts.get("driver", {})
    names = ("library", "version", "error")
    return {**{name: said.get(name) for name in names}, "gpus": said.get("gpus", [])}


def compilers(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What may compile device kernels; nothing of it is imported."""
    triton = inventory.package_folder("triton")
    nvrtc = _first(["nvidia/*/lib/libnvrtc.so*", "nvidia/*/lib64/libnvrtc.so*"]) or find_library(
        "nvrtc"
    )
    ptxas = environment.get("TRITON_PTXAS_PATH") or shutil.which(
        "ptxas", path=environment.get("PATH")
    )
    if not ptxas and triton and (own := triton / "backends/nvidia/bin/ptxas").exists():
        ptxas = str(own)
    bindings = _has_module("cuda.bindings")
    found: list[tuple[str, str | None, str | None]] = [
        ("triton", str(triton) if triton else None, installed("triton")),
        ("ptxas", ptxas, None),
        ("nvrtc", nvrtc, None),
        ("cuda-bindings", bindings, installed("cuda-bindings")),
    ]
    return [
        {"name": name, "present": place is not None, "version": version, "location": place}
        for name, place, version in found
    ]


def _has_module(name: str) -> str | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None


def _first(patterns: list[str]) -> str | None:
    for folder in sys.path:
        for pattern in patterns:
            for path in sorted(Path(folder or ".").glob(pattern)):
                return str(path)
    return None


def caches(environment: Mapping[str, str]) -> dict[str, Any]:
    root = cache_directory(environment)
    if root is None:
        return {"path": None, "exists": False, "writable": False, "bytes": 0, "folders": []}
    folders = []
    if root.is_dir():
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            sizes = [size for path in folder.rglob("*") if (size := _size(path)) is not None]
            folders.append({
                "name": folder.name,
                "holds": CACHES.get(folder.name),
                "files": len(sizes),
                "bytes": sum(sizes),
            })  # fmt: skip
    return {
        "path": str(root),
        "exists": root.exists(),
        "writable": _writable(root),
        "bytes": sum(folder["bytes"] for folder in folders),
        "folders": folders,
    }


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which itself may have to be made first."""
    if folder.exists():
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    above = next((parent for parent in folder.parents if parent.exists()), None)
    return above is not None and above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def bundle(imports: Imports, environment: Mapping[str, str]) -> dict[str, Any]:
    """The kernel bundle that RUDA_BUNDLE names: its manifest, with the number of its kernels."""
    named = environment.get("RUDA_BUNDLE")
    manifest, kernels = None, None
    if named:
        try:
            file = Path(named).expanduser() / "manifest.json"
            manifest = json.loads(file.read_text(encoding="utf-8"))
            kernels = len(manifest.pop("kernels"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            manifest = None  # the runtime's own error says what is wrong
    error = imports.facts.get("bundle", {}).get("error")
    return {"path": named or None, "manifest": manifest, "kernels": kernels, "error": error}


def torch(imports: Imports) -> dict[str, Any]:
    """The build, from torch's own file; the thread counts where ruda_torch could be imported."""
    said = imports.facts.get("torch", {})
    stated = inventory.stated(inventory.package_folder("torch"), "version")
    return {
        "version": stated.get("__version__"),
        "cuda": stated.get("cuda"),
        "git_version": stated.get("git_version"),
        "cxx11_abi": said.get("cxx11_abi"),
        "threads": said.get("threads"),
        "interop_threads": said.get("interop_threads"),
    }


def cpu(imports: Imports) -> dict[str, Any]:
    return {
        "name": inventory.cpu_name(),
        "features": inventory.cpu_features(),
        "cpus": inventory.cpu_count(),
        "threads": imports.facts.get("threads", {}).get("threads"),
    }


def variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Every setting with its value, then what else is called RUDA_*, then related variables."""
    wrong: dict[str, str] = {}
    for name, text in settings.problems(environment):
        wrong.setdefault(name, text)
    rows = [
        {
            "name": known.name,
            "package": known.package,
            "meaning": known.meaning,
            "allowed": known.allowed,
            "value": environment.get(known.name) or None,
            "problem": wrong.get(known.name),
        }
        for known in settings.SETTINGS
    ]
    unknown = sorted(
        name for name in environment if name.startswith("RUDA_") and settings.find(name) is None
    )
    rows += [
        {"name": name, "package": None, "meaning": None, "allowed": None,
         "value": environment[name], "problem": wrong.get(name)}
        for name in unknown
    ]  # fmt: skip
    return {
        "ruda": rows,
        "related": {name: environment[name] for name in _RELATED if name in environment},
    }
