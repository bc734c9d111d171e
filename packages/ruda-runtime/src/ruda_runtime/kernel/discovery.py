"""Finding the device kernels of the installed packages.

Every ``<package>/<family>/launch.py`` is imported; what it has of ``Definition`` and ``Kernel``
objects is a kernel, and its function ``bundle()`` lists the specialisations that bundles contain.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ruda_runtime import _native
from ruda_runtime.errors import RudaValueError
from ruda_runtime.kernel.definition import Kernel
from ruda_runtime.kernel.parameters import allows
from ruda_runtime.launch import Definition, Specialisation

PACKAGES = ("ruda_runtime", "ruda_blas", "ruda_dnn")

_lock = threading.Lock()
_found: dict[str, list[Family]] = {}


@dataclass(frozen=True)
class Family:
    """The kernels of one ``launch.py``.

    Attributes:
        module: its name.
        kernels: in the order of the module; several may have one function.
        bundle: its function of that name, or ``None``.
    """

    module: str
    kernels: list[Kernel]
    bundle: Callable[[], list[Specialisation]] | None


def families(package: str) -> list[Family]:
    """The families of one package; empty where it is not installed."""
    with _lock:
        if package not in _found:
            _found[package] = [_read(module) for module in _launch_modules(package)]
        return _found[package]


def discover() -> None:
    """Define the kernels of all installed packages."""
    for package in PACKAGES:
        families(package)


def kernel_of(wanted: Specialisation) -> Kernel:
    """The kernel that has a specialisation; the first one where several have it.

    The function's own package is looked at first, then all others: families use each other's
    kernels, and a package need not be one of ours.

    Raises:
        RudaValueError: no kernel has that function and declarations that allow the specialisation.
    """
    for package in dict.fromkeys((wanted.function.partition(".")[0], *PACKAGES)):
        for family in families(package):
            for kernel in family.kernels:
                if kernel.function == wanted.function and allows(kernel.parameters, wanted):
                    return kernel
    raise RudaValueError(
        f"[bundle] {wanted.function} is in a bundle() list, and no Definition of it allows "
        f"{dict(wanted.signature)} with {list(wanted.divisible)} divisible by 16"
    )


def _launch_modules(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    return [f"{package}.{file.parent.name}.launch" for file in sorted(root.glob("*/launch.py"))]


def _read(module: str) -> Family:
    loaded = importlib.import_module(module)
    kernels = []
    for value in vars(loaded).values():
        if isinstance(value, Definition):
            value = Kernel.of(value)
        if isinstance(value, Kernel):
            kernels.append(value)
    return Family(module, kernels, getattr(loaded, "bundle", None))


_native.set_kernel_finder(discover)
