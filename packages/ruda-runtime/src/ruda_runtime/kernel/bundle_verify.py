"""Checking a bundle's files against its checksums, its manifest and the installed packages."""

from __future__ import annotations

from pathlib import Path

from ruda_runtime.errors import RudaError
from ruda_runtime.kernel.bundle_build import checksums
from ruda_runtime.kernel.bundle_use import Bundle
from ruda_runtime.kernel.source import source_hash


def verify(path: Path) -> list[str]:
    """What is wrong with a bundle, a sentence each; empty when all is right."""
    try:
        listed = _read_sums(path / "SHA256SUMS")
        bundle = Bundle(path)
    except (OSError, ValueError, RudaError) as error:
        return [str(error)]
    found = _read_lines(checksums(path))
    problems = [f"{name}: in SHA256SUMS, and missing" for name in sorted(listed.keys() - found)]
    problems += [f"{name}: not in SHA256SUMS" for name in sorted(found.keys() - listed)]
    problems += [
        f"{name}: its checksum is {found[name][:16]}…, SHA256SUMS says {listed[name][:16]}…"
        for name in sorted(found.keys() & listed)
        if found[name] != listed[name]
    ]
    return problems + _check_entries(bundle, found)


def _check_entries(bundle: Bundle, found: dict[str, str]) -> list[str]:
    problems = []
    stale: dict[str, str] = {}
    for entry in bundle.manifest["kernels"]:
        name = f"kernels/{entry['file']}"
        if found.get(name) != entry["sha256"]:
            problems.append(f"{name}: is not what the manifest says of {entry['name']}")
        try:
            if source_hash(entry["function"]) != entry["source"]:
                stale[entry["function"]] = "its installed source is another one"
        except RudaError as error:
            stale[entry["function"]] = str(error)
    return problems + [f"{function}: {text}" for function, text in sorted(stale.items())]


def _read_sums(path: Path) -> dict[str, str]:
    return _read_lines(path.read_text())


def _read_lines(text: str) -> dict[str, str]:
    sums = {}
    for line in text.splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            raise ValueError(f"SHA256SUMS: {line!r} is no line of sha256sum")
        sums[name] = digest
    return sums
