"""What is installed and what the processor is. Imports nothing of the runtime."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "cpu_count", "cpu_features", "cpu_name", "package_folder", "package_version",
           "stated"]  # fmt: skip

PACKAGES = ("ruda-runtime", "ruda-blas", "ruda-dnn", "ruda-torch", "ruda-finetune")
"""The five, each after those it needs."""

_CPU_FEATURES = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "avx512_vnni",
    "avx_vnni", "amx_tile", "amx_bf16", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve",
    "sve2",
)  # fmt: skip


def _cpuinfo(*names: str) -> str:
    """The first value of one of these names in /proc/cpuinfo, else ``""``."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in names:
            return rest.strip()
    return ""


def cpu_features() -> list[str]:
    """The instruction sets of this processor that matter to numerical code, by Linux' names."""
    found = set(_cpuinfo("flags", "Features").split())
    return [feature for feature in _CPU_FEATURES if feature in found]


def cpu_name() -> str:
    """The processor's model name, else the machine's architecture."""
    return _cpuinfo("model name") or platform.machine()


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def package_folder(distribution: str) -> Path | None:
    """The folder that ``import`` would take a distribution's package from; imports nothing."""
    name = distribution.replace("-", "_")
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def stated(folder: Path | None, module: str) -> dict[str, Any]:
    """The names of a module of plain assignments in a package, read without importing that."""
    names: dict[str, Any] = {}
    if folder is not None:
        try:
            exec((folder / f"{module}.py").read_text(encoding="utf-8"), names)
        except (OSError, SyntaxError, UnicodeDecodeError):
            return {}
    return {name: value for name, value in names.items() if not name.startswith("__builtins__")}


def package_version(distribution: str) -> str | None:
    """The version of an installed distribution, or of one in a source checkout; imports nothing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return stated(package_folder(distribution), "_version").get("__version__")
