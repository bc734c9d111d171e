"""A view of the host kernels that the packages have registered in this process."""

from __future__ import annotations

from dataclasses import dataclass

from ruda_runtime import _native
from ruda_runtime.errors import RudaValueError


@dataclass(frozen=True)
class KernelInfo:
    """One registered host kernel.

    Attributes:
        name: ``"family.operation"``, for example ``"rms_norm.forward"``.
        package: the distribution that registered it.
        layout: hash of its argument struct; caller and kernel must agree on it.
        launches: how often it was launched in this process.
    """

    name: str
    package: str
    layout: int
    launches: int


def kernels() -> list[KernelInfo]:
    """The registered kernels, by name. A package registers its own when it is imported."""
    return [KernelInfo(*fields) for fields in _native.kernels()]


def launch_count(name: str | None = None) -> int:
    """Launches since the process started: of all kernels, or of the one called ``name``.

    Raises:
        RudaValueError: no kernel has that name.
    """
    if name is None:
        return _native.launch_count()
    for kernel in kernels():
        if kernel.name == name:
            return kernel.launches
    raise RudaValueError(
        f"[launch_count] name: got {name!r}, wanted a registered kernel; import the package that "
        "provides it"
    )
