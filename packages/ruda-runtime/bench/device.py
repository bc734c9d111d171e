"""Time what the driver double makes measurable without a GPU, and the import of the package.

    python packages/ruda-runtime/bench/device.py [--json]

Launches of the tests' example kernel (seven arguments) from C++ and from Python while the double
only records them: what is left is this package's part. A thousand interpreted launches of one
program: what a test on the double waits for. Each in a process of its own; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 11
INTERPRETED_ROUNDS = 7
EXAMPLES = Path(__file__).resolve().parents[1] / "tests" / "cuda"
HEAVY = ("triton", "torch", "cuda")  # cuda: cuda-python

Row = dict[str, object]


def row(operation: str, shape: str, seconds: list[float], unit: str, budget: float) -> Row:
    """One row for the ledger: the median, and the part of the budget that it takes."""
    ours = statistics.median(seconds) * {"us": 1e6, "s": 1.0}[unit]
    return {"operation": f"runtime.{operation}", "shape": shape, "dtype": "", "ours": ours,
            "peer": 0.0, "unit": unit, "peer_name": "", "ratio": 0.0,
            "limit": f"budget {budget:g} {unit}", "share": ours / budget}  # fmt: skip


def timed(body: Callable[[], object]) -> float:
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def measure_launches() -> list[Row]:
    """This process has RUDA_ASYNC=1 and RUDA_DOUBLE_RECORD_ONLY=1."""
    import examples
    from launches import Launcher

    x, y, out = examples.tensors(1024)

    def from_python() -> None:
        for _ in range(2000):
            examples.SCALE_ADD((4,), x, y, out, 1024, 2.0, 256, 1)

    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher.build(Path(folder))
        launcher(x, y, out, 1024, 1)
        native = [launcher(x, y, out, 1024, 5000) for _ in range(ROUNDS)]
    from_python()
    python = [timed(from_python) / 2000 for _ in range(ROUNDS)]
    return [
        row("launch on the double", "from C++, 7 arguments, recorded", native, "us", 2),
        row("launch on the double", "from Python, 7 arguments, recorded", python, "us", 8),
    ]


def measure_interpreted() -> list[Row]:
    """This process has RUDA_ASYNC=1."""
    import examples
    import numpy as np

    import ruda_runtime as rr

    x, y, out = examples.tensors(256)
    examples.run(x, y, out, 256)
    if not (out.numpy() == np.arange(256) * 2 + 1).all():
        raise SystemExit("the interpreted kernel is wrong: nothing is timed")

    def thousand() -> None:
        for _ in range(1000):
            examples.run(x, y, out, 256)
        rr.synchronize()

    seconds = [timed(thousand) for _ in range(INTERPRETED_ROUNDS)]
    return [row("interpreted launches", "1000 of one program", seconds, "s", 4)]


def measure_import() -> list[Row]:
    """Fresh processes of this one."""
    import ruda_runtime  # noqa: F401  (its files are in the page cache from here on)

    code = (
        "import sys, time; start = time.perf_counter(); import ruda_runtime\n"
        "print(time.perf_counter() - start)\n"
        f"sys.exit(' '.join(name for name in {HEAVY!r} if name in sys.modules) or None)"
    )
    seconds = []
    for _ in range(ROUNDS):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"importing ruda_runtime imports {done.stderr}")
        seconds.append(float(done.stdout))
    return [row("import", "ruda_runtime", seconds, "s", 0.2)]


PARTS: dict[str, tuple[Callable[[], list[Row]], dict[str, str]]] = {
    "launches": (measure_launches, {"RUDA_ASYNC": "1", "RUDA_DOUBLE_RECORD_ONLY": "1"}),
    "interpreted": (measure_interpreted, {"RUDA_ASYNC": "1"}),
    "import": (measure_import, {}),
}


def in_a_process(part: str) -> list[Row]:
    """The rows of one part, measured by a process with the environment that it needs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
    path = os.pathsep.join([str(EXAMPLES), *filter(None, [kept.get("PYTHONPATH")])])
    double = {"RUDA_TARGET": "cuda", "RUDA_CUDA_DRIVER": "double", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--part", part],
            env={**kept, **double, "RUDA_CACHE_DIR": cache, **PARTS[part][1]},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{part}: the measurement failed")
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Time launches on the driver double, and import.")
    parser.add_argument("--json", action="store_true", help="one JSON array, for the ledger")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part][0]()))
        return
    rows = [each for part in PARTS for each in in_a_process(part)]
    if arguments.json:
        print(json.dumps(rows))
        return
    for each in rows:
        print(f"{each['operation']:28} {each['shape']:36} {each['ours']:8.3f} {each['unit']:3} "
              f"{each['limit']}, {each['share']:.0%} of it")  # fmt: skip


if __name__ == "__main__":
    main()
