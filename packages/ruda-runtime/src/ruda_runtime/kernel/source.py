"""The source of a device kernel: where it is, and a hash of everything it is made of.

No compiler is imported: the hash covers the text of the kernel's file and of the RUDA modules that
the file imports, and of those they import.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruda_runtime.errors import RudaTypeError, RudaValueError

_local: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class CudaSource:
    """A kernel in CUDA C++, compiled by NVRTC.

    Attributes:
        text: the source; constants of a launch are defined as macros before it.
        entry: the name of the ``extern "C" __global__`` function.
    """

    text: str
    entry: str


def function_name(function: str | Callable[..., Any]) -> str:
    """``"module:name"`` of a function given by name or as the ``@triton.jit`` object."""
    if isinstance(function, str):
        module, _, name = function.partition(":")
        if not module or not name:
            raise RudaValueError(f"[Kernel] function: got {function!r}, wanted 'module:name'")
        return function
    inner = getattr(function, "fn", None)
    if inner is None or not hasattr(inner, "__code__"):
        raise RudaTypeError(
            f"[Kernel] function: got {type(function).__name__}, wanted a @triton.jit function or "
            "its name, 'module:name'"
        )
    name = f"{inner.__module__}:{inner.__name__}"
    _local[name] = function
    return name


def load_function(name: str) -> Callable[..., Any]:
    """The ``@triton.jit`` object; imports its module and with it Triton."""
    if name in _local:
        return _local[name]
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise RudaValueError(f"[Kernel] module {module} has no function {attribute}") from error


def local_file(name: str) -> str | None:
    """The file of a function that was given as an object, for whoever cannot import its module."""
    found = _local.get(name)
    return None if found is None else found.fn.__code__.co_filename  # type: ignore[attr-defined]


@functools.cache
def source_hash(name: str) -> str:
    """SHA-256 over the files that a kernel function is made of.

    Raises:
        RudaValueError: there is no source of that module.
    """
    file = local_file(name)
    start = Path(file) if file is not None else _module_file(name.partition(":")[0])
    if start is None:
        raise RudaValueError(f"[Kernel] function: no source file of {name!r} is installed")
    digest = hashlib.sha256()
    for path in sorted(_closure(start, name.partition(":")[0])):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _module_file(module: str) -> Path | None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return None if found is None or found.origin is None else Path(found.origin)


def _closure(path: Path, module: str) -> set[Path]:
    found: set[Path] = set()
    waiting = [(path, module)]
    while waiting:
        path, module = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in _imported(path, module):
            file = _module_file(name)
            if file is not None and file.suffix == ".py" and file.name != "__init__.py":
                waiting.append((file, name))
    return found


def _imported(path: Path, module: str) -> list[str]:
    """The modules of RUDA packages that a file imports by name."""
    package = module.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("ruda_")]
