"""Run the runtime's stress program under AddressSanitizer and ThreadSanitizer.

    python tools/sanitize.py [--rounds 400] [--threads 8] [--only address|thread] [--keep DIR]

Compiles the runtime's native sources (all but the Python bindings) with
packages/ruda-runtime/tests/stress/stress.cpp and runs the program with synchronous and with
asynchronous dispatch. Needs a C++ compiler with the sanitizers' libraries, and nothing of Python's
packages. Exits with 1 when a build or a run fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUNTIME = Path(__file__).resolve().parent.parent / "packages" / "ruda-runtime"
NATIVE = RUNTIME / "src" / "ruda_runtime" / "native"
BINDINGS = ("module.cpp", "bindings_", "exchange_")
OPTIONS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0"},
    # Exits at the first report, so that a report is never lost in the output.
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
}


def sources() -> list[Path]:
    """The native sources without Python, and the program."""
    return [
        *(each for each in sorted(NATIVE.rglob("*.cpp")) if not each.name.startswith(BINDINGS)),
        RUNTIME / "tests" / "stress" / "stress.cpp",
    ]


def compile_program(compiler: str, sanitizer: str, folder: Path) -> Path:
    """Build the program with one sanitizer; objects in parallel."""
    flags = [
        "-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-pthread",
        f"-fsanitize={sanitizer}",
        f"-I{NATIVE}",
        f"-I{NATIVE.parent / 'include'}",
    ]  # fmt: skip

    def build(source: Path) -> Path:
        target = folder / f"{sanitizer}-{source.parent.name}-{source.stem}.o"
        subprocess.run([compiler, *flags, "-c", str(source), "-o", str(target)], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(build, sources()))
    program = folder / f"stress-{sanitizer}"
    subprocess.run([compiler, *flags, *map(str, objects), "-ldl", "-o", str(program)], check=True)
    return program


def run(program: Path, sanitizer: str, asynchronous: bool, rounds: int, threads: int) -> bool:
    """One run; prints its output when it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    environment = {**kept, **OPTIONS[sanitizer], "RUDA_ASYNC": str(int(asynchronous))}
    started = time.monotonic()
    done = subprocess.run(
        [str(program), str(rounds), str(threads)],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    print(f"{sanitizer}: {time.monotonic() - started:.1f} s, {done.stdout.strip()}", flush=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
    return done.returncode == 0


def main() -> int:
    """Build and run; the process's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400, help="operations of each thread")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--only", choices=sorted(OPTIONS))
    parser.add_argument("--keep", type=Path, help="a folder for the programs")
    arguments = parser.parse_args()
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        print("a C++ compiler is needed: install one, or set CXX", file=sys.stderr)
        return 1
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for sanitizer in [arguments.only] if arguments.only else sorted(OPTIONS):
            program = compile_program(compiler, sanitizer, folder)
            for asynchronous in (False, True):
                good &= run(program, sanitizer, asynchronous, arguments.rounds, arguments.threads)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
