"""Time what every operation pays: an allocation, a launch, the start of a parallel loop.

    python packages/ruda-runtime/bench/overhead.py [--json]

What asynchronous dispatch adds is measured in a process of its own, with RUDA_ASYNC=1.

The loops are C++ (overhead.cpp, compiled here against the installed headers). Peers: glibc's malloc
and OpenMP, measured alternately in the same process. Times are medians in microseconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("RUDA_TARGET", "host")

import ruda_runtime
from ruda_runtime import _native

ROUNDS = 11
MIB = 1 << 20


def build(folder: Path) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("a C++ compiler is needed: install one, or set CXX")
    library = folder / "overhead.so"
    subprocess.run(
        [compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-fopenmp", "-I",
         ruda_runtime.get_include(), str(Path(__file__).with_name("overhead.cpp")), "-o",
         str(library)],
        check=True,
    )  # fmt: skip
    loaded = ctypes.CDLL(str(library))
    names = ("pool", "malloc", "launch", "handoff", "queued_launch", "parallel_for", "openmp")
    for name in names:
        getattr(loaded, f"bench_{name}").restype = ctypes.c_double
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.c_void_p(pointer(_native.api, b"ruda_runtime._native.api"))
    if loaded.bench_attach(table, None) != 0:
        raise SystemExit("the headers and the installed ruda-runtime do not fit")
    return loaded


def paired(
    ours: Callable[[], float], peer: Callable[[], float] | None
) -> tuple[float, float, float]:
    """Medians in microseconds and the median of the paired ratios."""
    left, right = [], []
    for _ in range(ROUNDS):
        left.append(ours())
        right.append(peer() if peer else 0.0)
    ratios = [a / b for a, b in zip(left, right) if b]
    return (
        statistics.median(left) / 1e3,
        statistics.median(right) / 1e3,
        statistics.median(ratios) if ratios else 0.0,
    )


def ledger_row(
    operation: str, shape: str, name: str, result: tuple[float, float, float], budget: float = 0.0
) -> dict[str, object]:
    """One row: `result` is ours, the peer's and the ratio; the budget is in microseconds."""
    ours, peer, ratio = result
    return {"operation": operation, "shape": shape, "dtype": "", "ours": ours, "peer": peer,
            "unit": "us", "peer_name": name, "ratio": ratio,
            "limit": f"budget {budget:g} us" if budget else "",
            "share": ours / budget if budget else 0.0}  # fmt: skip


def measure_queued() -> list[dict[str, object]]:
    """The rows of asynchronous dispatch; this process has RUDA_ASYNC=1."""
    count = ctypes.c_int64
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        return [
            ledger_row("runtime.hand-off and back", "spinning worker", "", paired(
                lambda: library.bench_handoff(count(5_000), count(0)), None)),
            ledger_row("runtime.hand-off and back", "sleeping worker", "", paired(
                lambda: library.bench_handoff(count(50), count(1_000)), None)),
            ledger_row("runtime.queued launch", "10 views, busy stream", "", paired(
                lambda: library.bench_queued_launch(count(1_000)), None)),
        ]  # fmt: skip


def queued_rows() -> list[dict[str, object]]:
    """The same from a process of its own: a process dispatches in one way."""
    done = subprocess.run(
        [sys.executable, __file__, "--queued"],
        env={**os.environ, "RUDA_ASYNC": "1"}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def replayed(library: ctypes.CDLL, nodes: int) -> Callable[[], float]:
    """Nanoseconds a node of a replay of so many empty kernels."""
    with ruda_runtime.Graph.capture() as graph:
        if library.bench_submit(ctypes.c_int64(nodes), None) != 0:
            raise SystemExit("the launches could not be captured")

    def replay() -> float:
        start = time.perf_counter_ns()
        graph.replay()
        return (time.perf_counter_ns() - start) / nodes

    return replay


def measure() -> list[dict[str, object]]:
    """Rows for the ledger: operation, shape, ours, peer, unit, peer_name, ratio."""
    count = ctypes.c_int64
    rows: list[dict[str, object]] = []

    def row(
        operation: str, shape: str, name: str, result: tuple[float, float, float],
        budget: float = 0.0,
    ) -> None:  # fmt: skip
        rows.append(ledger_row(operation, shape, name, result, budget))

    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for size in (256, 65536, 4 * MIB):
            rounds = count(20_000 if size < MIB else 2_000)
            row("runtime.allocate", f"{size} B", "malloc", paired(
                lambda r=rounds, s=size: library.bench_pool(r, count(s), count(0)),
                lambda r=rounds, s=size: library.bench_malloc(r, count(s), count(0)),
            ))  # fmt: skip
        row("runtime.allocate and write", "64 MiB", "malloc", paired(
            lambda: library.bench_pool(count(2), count(64 * MIB), count(64 * MIB)),
            lambda: library.bench_malloc(count(2), count(64 * MIB), count(64 * MIB)),
        ))  # fmt: skip
        row("runtime.launch", "empty kernel", "", paired(
            lambda: library.bench_launch(count(100_000)), None,
        ))  # fmt: skip
        row("runtime.graph replay", "a node, empty kernel", "", paired(
            replayed(library, 100_000), None,
        ), budget=0.3)  # fmt: skip
        parts = 2 * ruda_runtime.get_num_threads()
        row("runtime.parallel_for", f"{parts} empty parts", "openmp", paired(
            lambda: library.bench_parallel_for(count(2_000), count(parts)),
            lambda: library.bench_openmp(count(2_000), count(parts)),
        ))  # fmt: skip
    return rows + queued_rows()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time ruda-runtime's fixed costs.")
    parser.add_argument("--json", action="store_true", help="one JSON array, for the ledger")
    parser.add_argument("--queued", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    as_json = arguments.json or arguments.queued
    rows = measure_queued() if arguments.queued else measure()
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{ruda_runtime.get_num_threads()} threads, ruda-runtime {ruda_runtime.__version__}")
    for row in rows:
        peer = f"{row['peer_name']} {row['peer']:.4f} us, ratio {row['ratio']:.3f}"
        print(f"{row['operation']:28} {row['shape']:16} {row['ours']:10.4f} us  "
              f"{peer if row['peer_name'] else ''}")  # fmt: skip


if __name__ == "__main__":
    main()
