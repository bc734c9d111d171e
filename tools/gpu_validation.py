"""Validate this checkout on the GPU at hand and write gpu-validation.json.

    python tools/gpu_validation.py --bundle runs/bundle --output docs/validation/h200.json
    python tools/gpu_validation.py --only build conformance
    python tools/gpu_validation.py --check docs/validation/h200.json

Builds the native modules in place with plain CMake, takes every conformance case and example
through the target cuda, with kernels compiled here by Triton and then with those of a bundle and no
Triton, and trains: a small random Llama whose losses must be the host's, and the demo where its
data is installed. tools/validation/selection.toml says what the cases are.

Needs a GPU and its driver, Python 3.11 or newer, torch 2.11 to 2.13, Triton 3.6 to 3.9,
cuda-bindings, pybind11, CMake, ninja, g++, pytest, NumPy, ml_dtypes; no network, nox or hatchling.
Exits with 0 when all that was asked for passed. No GPU, a failure, a skip that
tools/validation/selection.toml does not allow, an empty selection or a phase without time left is a
failure (1); arguments that make no sense are 2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from validation import machine, selection
from validation.phases import PHASES, perform
from validation.record import Record, refusal
from validation.run import Run
from validation.run_group import stop_all

REHEARSAL = 3  # exit status: all passed, on the driver double, which validates nothing


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        epilog="Exit status: 0 passed, 1 failed, 2 wrong arguments.",
    )
    parser.add_argument("--output", type=Path, default=Path("gpu-validation.json"), metavar="FILE")
    parser.add_argument(
        "--bundle", type=Path, default=machine.ROOT / "runs" / "bundle", metavar="PATH",
        help="kernels compiled elsewhere (nox -s bundle), a folder or a tar file of it; default: "
        "runs/bundle",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", choices=list(PHASES), metavar="PHASE",
        help=f"some of the phases: {', '.join(PHASES)}; the result is then no full validation",
    )  # fmt: skip
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME[:KEYWORD]",
        help="only this group of cases, or those of it that pytest's -k KEYWORD selects",
    )  # fmt: skip
    parser.add_argument("--budget-s", type=float, default=480.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--require-demo", action="store_true", help="the demo's data packages must be installed"
    )
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="say whether a result file is a validation"
    )
    # For tests of this tool. What is run on the driver double never counts as a validation.
    quiet = argparse.SUPPRESS
    parser.add_argument("--target", choices=("cuda", "double"), default="cuda", help=quiet)
    parser.add_argument("--selection", type=Path, default=selection.FILE, help=quiet)
    parser.add_argument("--installed", action="store_true", help=quiet)
    return parser.parse_args(argv)


def check(file: Path) -> int:
    try:
        content: Any = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        content, problem = None, f"it cannot be read: {error}"
    else:
        problem = refusal(content)
    if problem:
        print(f"{file} is no validation: {problem}", file=sys.stderr)
        return 1
    print(f"{file}: {content['sentence']}")
    return 0


def complete(given: argparse.Namespace) -> bool:
    """Whether everything was asked for, of the checkout itself."""
    narrowed = given.only or given.group or given.installed
    return not narrowed and given.selection == selection.FILE


def end(record: Record, interrupted: str = "") -> int:
    sentence = record.finish(interrupted)
    print(f"{record.verdict}: {sentence}; {record.path}", flush=True)
    codes = {"passed": 0, "partial": 0, "rehearsal": REHEARSAL}
    return codes.get(record.verdict, 1)


def main(argv: list[str] | None = None) -> int:
    given = arguments(argv)
    if given.check is not None:
        return check(given.check)
    deadline = time.monotonic() + given.budget_s
    try:
        chosen = selection.choose(selection.read(given.selection), given.group)
    except ValueError as error:
        print(f"gpu_validation: {error}", file=sys.stderr)
        return 2
    names = [name for name in PHASES if given.only is None or name in given.only]
    record = Record(given.output.resolve(), complete=complete(given))

    def interrupt(number: int, _frame: object) -> NoReturn:
        # At once: the main thread may wait for others, which wait for processes.
        code = end(record, f"interrupted by {signal.Signals(number).name}")
        stop_all()
        os._exit(code)

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    try:
        record.versions, record.source = machine.versions(), machine.source_state()
        record.device = {"real": False, "name": None}
        if given.target == "double":
            record.device["note"] = "driver double, not a GPU"
        else:
            record.device = machine.find_gpu()
        record.save()
        folder = machine.ROOT / "build" / "gpu_validation"
        if given.installed:
            folder = record.path.parent / "gpu_validation"
        perform(
            Run(record, chosen, given.target, folder, given.jobs, deadline, given.bundle,
                given.require_demo, given.installed), names,
        )  # fmt: skip
    except machine.NoGpu as error:
        return end(record, f"no GPU: {error}")
    except BaseException as error:
        end(record, f"the tool itself failed: {type(error).__name__}: {error}")
        raise
    return end(record)


if __name__ == "__main__":
    sys.exit(main())
