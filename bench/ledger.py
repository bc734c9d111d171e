"""Rows of bench/ledger.csv."""

from __future__ import annotations

import csv
import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LEDGER = Path(__file__).resolve().parent / "ledger.csv"
COLUMNS = [
    "operation", "shape", "dtype", "ours", "peer", "unit", "peer_name", "ratio", "limit", "share",
    "machine", "versions", "date",
]  # fmt: skip


def machine() -> str:
    """Cores and vector width: enough to judge a row, no host names."""
    model, flags = platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            if key.strip() == "flags":
                flags = value
    vector = next((name for name in ("avx512f", "avx2") if name in flags.split()), "baseline")
    return f"{model} {vector} {len(os.sched_getaffinity(0))} cores"


def versions(*packages: str) -> str:
    parts = []
    for package in packages:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return "; ".join(parts)


def append(
    operation: str,
    shape: str,
    dtype: str,
    ours: float,
    peer: float,
    unit: str,
    peer_name: str,
    packages: str,
    ratio: float | None = None,
    limit: str = "",
    share: float = 0.0,
) -> None:
    """Append one row; `ratio` is the median of paired ratios where there are pairs."""
    new = not LEDGER.exists()
    value = ratio if ratio is not None else (ours / peer if peer else 0.0)
    with LEDGER.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        writer.writerow([
            operation, shape, dtype, f"{ours:.4g}", f"{peer:.4g}", unit, peer_name, f"{value:.3f}",
            limit, f"{share:.3f}", machine(), packages, datetime.date.today().isoformat(),
        ])  # fmt: skip
    print(
        f"{operation:28} {shape:24} {dtype:9} ours {ours:10.4g} {peer_name} {peer:10.4g} {unit} "
        f"ratio {value:.3f} share {share:.2f}"
    )
