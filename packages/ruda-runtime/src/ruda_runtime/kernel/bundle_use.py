"""A bundle at run time: its manifest is checked once, its kernels are read when they are asked for.

RUDA_BUNDLE/
  manifest.json    what it was built from and for, and every kernel in it
  SHA256SUMS       of all other files
  kernels/         images, named by their hash
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from ruda_runtime import _native
from ruda_runtime._abi import PROVIDES
from ruda_runtime.errors import RudaRuntimeError
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.kernel.source import source_hash
from ruda_runtime.launch import Specialisation

FORMAT = 1

_lock = threading.Lock()
_current: Bundle | None = None
_read = False


def specialisation_key(wanted: Specialisation) -> str:
    """The text by which a manifest names a specialisation."""
    return json.dumps(wanted, sort_keys=True, separators=(",", ":"))


class Bundle:
    """A folder of compiled kernels.

    Raises:
        RudaRuntimeError: it cannot be read, or it was built for another ABI or API than this
            runtime's; the text names both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
            entries = self.manifest["kernels"]
            self._entries = {
                (each["architecture"], each["specialisation"]): each for each in entries
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RudaRuntimeError(
                f"[RUDA_BUNDLE] {path} cannot be read as a bundle: {type(error).__name__}: {error}"
            ) from error
        self._check()
        self._checked: set[str] = set()

    def _check(self) -> None:
        ours = {"format": FORMAT, "abi": _native.abi_version, "api": dict(PROVIDES)}
        for name, value in ours.items():
            given = self.manifest.get(name)
            if given != value:
                raise RudaRuntimeError(
                    f"[RUDA_BUNDLE] {self.path} was built for {name} {given}, this ruda-runtime "
                    f"has {name} {value}: build the bundle again with `ruda bundle build`"
                )

    @property
    def architectures(self) -> list[int]:
        return list(self.manifest["architectures"])

    def find(self, kernel: str, wanted: Specialisation, architecture: int) -> Artifact | None:
        """The code for a specialisation; machine code of an older GPU of the same family will do.

        Raises:
            RudaRuntimeError: the kernel's source has changed since the bundle was built, or the
                file is not what the manifest says.
        """
        key = specialisation_key(wanted)
        for candidate in _usable(architecture):
            entry = self._entries.get((candidate, key))
            if entry is not None:
                self._check_source(kernel, wanted.function, entry)
                return self._load(kernel, entry)
        return None

    def _check_source(self, kernel: str, function: str, entry: dict[str, Any]) -> None:
        if function.startswith("cuda:") or function in self._checked:
            return
        ours = source_hash(function)
        if entry["source"] != ours:
            raise RudaRuntimeError(
                f"[{kernel}] the bundle {self.path} was built from source {entry['source'][:16]}…, "
                f"the installed {function} is {ours[:16]}…: build the bundle again with `ruda "
                "bundle build`, or unset RUDA_BUNDLE"
            )
        self._checked.add(function)

    def _load(self, kernel: str, entry: dict[str, Any]) -> Artifact:
        file = self.path / "kernels" / entry["file"]
        try:
            image = file.read_bytes()
        except OSError as error:
            raise RudaRuntimeError(f"[{kernel}] {file} cannot be read: {error}") from error
        if hashlib.sha256(image).hexdigest() != entry["sha256"]:
            raise RudaRuntimeError(
                f"[{kernel}] {file} is damaged: its checksum is not the manifest's; run `ruda "
                f"bundle verify {self.path}`"
            )
        return Artifact(image=image, **entry["code"])


def current() -> Bundle | None:
    """The bundle of RUDA_BUNDLE, read at its first use."""
    global _current, _read
    if not _read:
        with _lock:
            if not _read:
                named = os.environ.get("RUDA_BUNDLE")
                _current = Bundle(Path(named).expanduser()) if named else None
                _read = True
    return _current


def _usable(architecture: int) -> list[int]:
    # From 9.0 on code is for one architecture (sm_90a, …), before for later ones of the family.
    if architecture >= 90:
        return [architecture]
    return list(range(architecture, architecture // 10 * 10 - 1, -1))
