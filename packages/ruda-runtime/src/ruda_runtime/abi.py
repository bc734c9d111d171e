"""The version handshake of the RUDA packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from ruda_runtime.errors import AbiMismatch


@dataclass(frozen=True)
class _Package:
    version: str
    provides: Mapping[str, int]


_packages: dict[str, _Package] = {}


def check_abi(
    package: str,
    version: str,
    provides: Mapping[str, int],
    requires: Mapping[str, Mapping[str, int]],
    native_abi: int | None = None,
) -> None:
    """Announce a package and check it against the packages below it.

    Called by a package's ``__init__`` before it uses any other symbol of its own native module or
    of the packages below.

    Args:
        package: distribution name, for example ``"ruda-dnn"``.
        version: its version, ``0.<ABI>.<patch>``.
        provides: interface numbers of this package, for example ``{"tensor": 10}``.
        requires: for each package below, the numbers that this one was written for.
        native_abi: ``_native.abi_version`` of a package with native code, else ``None``.

    Raises:
        AbiMismatch: a package below is missing or provides another number, the native module was
            compiled for another ABI than ``provides["tensor"]``, or the package was announced
            before with another version. The text names both sides, their numbers and the pip
            command that repairs it.
    """
    if native_abi is not None and native_abi != provides.get("tensor"):
        raise AbiMismatch(
            f"[import] {package} {version}: its native module was compiled for tensor ABI "
            f"{native_abi}, its Python files are for ABI {provides.get('tensor')}; two versions "
            f"are mixed in one installation. {_repair([(package, version)])}"
        )
    for name, wanted in requires.items():
        _check_requirement(package, version, name, wanted)
    known = _packages.get(package)
    if known is not None and known.version != version:
        raise AbiMismatch(
            f"[import] {package} {version} was imported after {package} {known.version} in one "
            f"process. {_repair([(package, version)])}"
        )
    _packages[package] = _Package(version, dict(provides))


def _check_requirement(package: str, version: str, name: str, wanted: Mapping[str, int]) -> None:
    if name not in _packages:
        try:
            importlib.import_module(name.replace("-", "_"))
        except AbiMismatch:
            raise
        except ModuleNotFoundError as error:
            if error.name != name.replace("-", "_"):
                raise
            raise AbiMismatch(
                f"[import] {package} {version} needs {name}, which is not installed. "
                f"{_repair([(name, version)])}"
            ) from error
    found = _packages.get(name)
    if found is None:
        raise AbiMismatch(
            f"[import] {package} {version} needs {name}, whose import announced no ABI. "
            f"{_repair([(package, version), (name, version)])}"
        )
    for interface, number in wanted.items():
        given = found.provides.get(interface)
        if given != number:
            has = "does not provide it" if given is None else f"provides {interface} {given}"
            raise AbiMismatch(
                f"[import] {package} {version} requires {interface} {number} of {name}, but {name} "
                f"{found.version} {has}. {_repair([(package, version), (name, version)])}"
            )


def _repair(packages: list[tuple[str, str]]) -> str:
    """The pip command that installs one ABI for all of them: ABI n is every version 0.n.*."""
    names = " ".join(
        f"'{name}=={'.'.join(version.split('.')[:2])}.*'" for name, version in packages
    )
    return f"Repair: python -m pip install --upgrade --force-reinstall {names}"
