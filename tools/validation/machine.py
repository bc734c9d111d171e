"""What the run is made on: the GPU, the tools' versions, the sources. Imports nothing of RUDA."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("runtime", "blas", "dnn", "torch", "finetune")
DISTRIBUTIONS = (
    "torch", "triton", "numpy", "ml_dtypes", "cuda-bindings", "transformers", "safetensors",
    "pytest", "pybind11", "scikit-build-core", "scipy-openblas32",
)  # fmt: skip
_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16  # CUdevice_attribute


class NoGpu(Exception):
    """There is no GPU to validate on; the text says what is missing."""


def sources() -> list[Path]:
    """The packages' import paths in this checkout."""
    return [ROOT / "packages" / f"ruda-{name}" / "src" for name in PACKAGES]


def find_gpu() -> dict[str, Any]:
    """The first visible GPU, asked of the driver itself.

    Raises:
        NoGpu: there is no driver, or it shows no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoGpu(f"the NVIDIA driver's library cannot be loaded: {error}") from None
    if hasattr(driver, "ruda_double_last_report"):
        raise NoGpu("libcuda.so.1 is the driver double")
    if status := driver.cuInit(0):
        raise NoGpu(f"the NVIDIA driver cannot be started: cuInit gives error {status}")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value < 1:
        raise NoGpu("the NVIDIA driver shows no GPU")
    device, number = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    attributes = []
    for attribute in (_MAJOR, _MINOR, _MULTIPROCESSORS):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        attributes.append(number.value)
    driver.cuDriverGetVersion(ctypes.byref(number))
    return {
        "real": True,
        "name": name.value.decode(),
        "compute_capability": attributes[:2],
        "multiprocessors": attributes[2],
        "memory_bytes": memory.value,
        "driver": _driver_version(),
        "cuda": f"{number.value // 1000}.{number.value % 1000 // 10}",
    }


def _driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or ""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found[0] if found else None


def versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": " ".join(platform.libc_ver()),
    }
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    for name in ("g++", "cmake", "ninja", "nvcc"):
        text = _output(name, "--version")
        number = re.search(r"\b\d+\.\d+(\.\d+)*\b", text.rsplit("release", 1)[-1]) if text else None
        found[name] = number[0] if number else None
    for name, folder in zip(PACKAGES, sources(), strict=True):
        names: dict[str, Any] = {}
        exec((folder / f"ruda_{name}" / "_version.py").read_text(), names)
        found[f"ruda-{name}"] = names["__version__"]
    return found


def source_state() -> dict[str, Any]:
    """The revision, where there is git, and a digest of the sources, where there is none."""
    digest = hashlib.sha256()
    for folder in sources():
        for path in sorted([*folder.rglob("*"), *(folder.parent / "csrc").rglob("*")]):
            if path.suffix in {".py", ".cpp", ".hpp", ".h", ".inc", ".cmake"}:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    revision = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", "packages")
    return {
        "revision": revision.strip() if revision else None,
        "changed": None if changed is None else bool(changed.strip()),
        "sha256": digest.hexdigest(),
    }


def unpacked(bundle: Path, folder: Path) -> Path:
    """The folder of a bundle that may be a tar file: compressed it is a tenth of the size.

    Raises:
        OSError, tarfile.TarError: it cannot be unpacked.
    """
    if not bundle.is_file():
        return bundle
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="data")
    return next((path.parent for path in folder.rglob("manifest.json")), folder)


def bundle_summary(path: Path) -> dict[str, Any]:
    """A bundle's manifest without its kernels.

    Raises:
        OSError, ValueError, KeyError: it cannot be read.
    """
    content = (path / "manifest.json").read_bytes()
    manifest = json.loads(content)
    names = ("abi", "source_revision", "packages", "architectures", "compiler", "image",
             "ptx_version")  # fmt: skip
    return {
        **{name: manifest[name] for name in names},
        "kernels": len(manifest["kernels"]),
        "left_out": len(manifest["left_out"]),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def can_import(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
