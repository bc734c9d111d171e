"""The report for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def as_text(report: dict[str, Any]) -> str:
    """The whole report as lines of text; findings come last, where they are seen."""
    lines: list[str] = []
    for title, part in (
        ("System", _system), ("Packages", _packages), ("ABI", _abi), ("Target", _target),
        ("CUDA driver", _driver), ("Compilers", _compilers), ("Kernel bundle", _bundle),
        ("Caches", _caches), ("PyTorch", _torch), ("CPU", _cpu), ("Settings", _settings),
    ):  # fmt: skip
        lines += [title, *("  " + line for line in part(report)), ""]
    return "\n".join([*lines, *_findings(report["findings"])])


def size(nbytes: int) -> str:
    """Bytes for people: 512 B, 3.4 MB."""
    number = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def _table(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))] \
        if texts else []  # fmt: skip
    for row in texts:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def _system(report: dict[str, Any]) -> Iterator[str]:
    system = report["system"]
    yield f"{system['platform']}, {system['libc']}"
    yield f"Python {system['python']}: {system['executable']}"
    yield ", ".join(f"{name} {version}" for name, version in system["others"].items() if version)


def _packages(report: dict[str, Any]) -> Iterator[str]:
    states = {True: "imports", False: "IMPORT FAILS", None: "not tried"}
    yield from _table(
        (row["name"], row["version"] or "?", states[row["imports"]], row["location"])
        if row["installed"]
        else (row["name"], "-", "not installed", "-")
        for row in report["packages"]
    )


def _abi(report: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        [("package", "interface", "required", "provided", "by", "fits")]
        + [
            (row["package"], row["interface"], row["required"], row["provided"], row["provider"],
             "yes" if row["fits"] else "NO")
            for row in report["abi"]
        ]
    )  # fmt: skip


def _target(report: dict[str, Any]) -> Iterator[str]:
    target = report["target"]
    yield f"{target['chosen'] or 'none'} (asked for: {target['requested']})"
    yield f"because: {target['why']}"
    for device in target["devices"]:
        yield (
            f"{device['target']}:{device['index']} {device['name']}, "
            f"{size(device['memory_free'] or 0)} of {size(device['memory_total'] or 0)} free, "
            f"{', '.join(device['capabilities'])}"
        )


def _driver(report: dict[str, Any]) -> Iterator[str]:
    driver = report["driver"]
    if driver["library"] is None:
        yield "none found"
        return
    yield f"{driver['library']}, for CUDA up to {driver['version'] or '?'}"
    if driver["error"]:
        yield f"not usable: {driver['error']}"
    for index, gpu in enumerate(driver["gpus"]):
        capability = ".".join(map(str, gpu["compute_capability"]))
        yield f"GPU {index}: {gpu['name']}, {capability}, {size(gpu['memory_total'])}"


def _compilers(report: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        (row["name"], row["version"] if row["present"] else "not found", row["location"])
        for row in report["compilers"]
    )


def _bundle(report: dict[str, Any]) -> Iterator[str]:
    bundle = report["bundle"]
    if bundle["path"] is None:
        yield "none in use"
        return
    yield str(bundle["path"])
    if bundle["error"]:
        yield f"NOT USABLE: {bundle['error']}"
    if bundle["manifest"]:
        yield f"{bundle['kernels']} kernels"
    for name, value in (bundle["manifest"] or {}).items():
        if not isinstance(value, dict | list) or name == "architectures":
            yield f"{name}: {value}"


def _caches(report: dict[str, Any]) -> Iterator[str]:
    caches = report["caches"]
    state = "writable" if caches["writable"] else "NOT WRITABLE"
    exists = "" if caches["exists"] else ", not there yet"
    yield f"{caches['path'] or 'no folder'}: {size(caches['bytes'])}, {state}{exists}"
    yield from _table(
        (f"{folder['name']}/", f"{folder['files']} files", size(folder["bytes"]), folder["holds"])
        for folder in caches["folders"]
    )


def _torch(report: dict[str, Any]) -> Iterator[str]:
    torch = report["torch"]
    if torch["version"] is None:
        yield "not installed"
        return
    yield f"{torch['version']}, built for CUDA: {torch['cuda'] or 'no'}"
    if torch["threads"] is not None:
        abi = "C++11" if torch["cxx11_abi"] else "before C++11"
        yield (
            f"{torch['threads']} threads, {torch['interop_threads']} between operators, ABI {abi}"
        )


def _cpu(report: dict[str, Any]) -> Iterator[str]:
    cpu = report["cpu"]
    yield f"{cpu['name']}: {cpu['cpus']} CPUs for this process, {cpu['threads'] or '?'} threads"
    yield f"features: {', '.join(cpu['features']) or '-'}"


def _settings(report: dict[str, Any]) -> Iterator[str]:
    settings = report["settings"]
    given = [row for row in settings["ruda"] if row["value"] is not None or row["problem"]]
    if not given:
        yield "no RUDA_* variable is set"
    yield from _table(
        (
            f"{row['name']}={row['value'] or ''}",
            row["meaning"] or "unknown",
            "WRONG" if row["problem"] else "",
        )
        for row in given
    )
    yield from (f"{name}={value}" for name, value in settings["related"].items())


def _findings(findings: list[dict[str, str]]) -> Iterator[str]:
    if not findings:
        yield "No findings: everything fits."
        return
    yield f"{len(findings)} finding{'s' if len(findings) > 1 else ''}:"
    for number, finding in enumerate(findings, 1):
        yield f"{number}. {finding['message']}"
        yield f"   {finding['advice']}. ({finding['code']})"
