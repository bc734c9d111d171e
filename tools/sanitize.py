"""Run the runtime's stress programs under AddressSanitizer and ThreadSanitizer.

    python tools/sanitize.py [host|cuda ...] [--rounds 400] [--threads 8] [--only address|thread]

Compiles the runtime's native sources (all but the Python bindings) with the programs of
packages/ruda-runtime/tests/stress: `host`, and `cuda` on the driver double, whose sources are
compiled with the same sanitizer. Each runs with synchronous and with asynchronous dispatch. Needs a
C++ compiler with the sanitizers' libraries, and nothing of Python's packages. Exits with 1 when a
build or a run fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUNTIME = Path(__file__).resolve().parent.parent / "packages" / "ruda-runtime"
NATIVE = RUNTIME / "src" / "ruda_runtime" / "native"
DOUBLE = RUNTIME / "double"
STRESS = RUNTIME / "tests" / "stress"
BINDINGS = ("module.cpp", "bindings_", "exchange_")
PROGRAMS = {
    "host": [STRESS / "stress.cpp"],
    "cuda": [STRESS / "cuda_stress.cpp", STRESS / "cuda_stress_kernels.cpp", DOUBLE / "sha256.cpp"],
}
OPTIONS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0"},
    # Exits at the first report, so that a report is never lost in the output.
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
}


class Builder:
    """Objects, programs and the double, each compiled once with one sanitizer."""

    def __init__(self, compiler: str, sanitizer: str, folder: Path) -> None:
        self.sanitizer = sanitizer
        self.folder = folder / sanitizer
        self.folder.mkdir(parents=True, exist_ok=True)
        self._made: dict[Path, Path] = {}
        self._command = [
            compiler, "-std=gnu++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-fPIC", "-pthread",
            f"-fsanitize={sanitizer}", f"-I{NATIVE}", f"-I{NATIVE.parent / 'include'}",
        ]  # fmt: skip

    def _object(self, source: Path) -> Path:
        target = self.folder / f"{source.parent.name}-{source.stem}.o"
        if source not in self._made:
            command = [*self._command, "-c", str(source), "-o", str(target)]
            subprocess.run(command, check=True)
            self._made[source] = target
        return target

    def _link(self, target: Path, sources: Iterable[Path], *flags: str) -> Path:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = [str(each) for each in pool.map(self._object, sources)]
        subprocess.run([*self._command, *objects, "-ldl", *flags, "-o", str(target)], check=True)
        return target

    def program(self, name: str) -> Path:
        """A program with the native sources in it."""
        native = (each for each in NATIVE.rglob("*.cpp") if not each.name.startswith(BINDINGS))
        return self._link(self.folder / f"stress-{name}", [*sorted(native), *PROGRAMS[name]])

    def double(self) -> Path:
        """The driver double as a library, under the driver's name."""
        target = self.folder / "libcuda.so.1"
        flags = ("-shared", f"-Wl,-soname,{target.name}")
        return self._link(target, sorted(DOUBLE.glob("*.cpp")), *flags)


def run(command: list[str], label: str, environment: dict[str, str]) -> bool:
    """One run; prints its output when it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    started = time.monotonic()
    done = subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, timeout=900
    )
    print(f"{label}: {time.monotonic() - started:.1f} s, {done.stdout.strip()}", flush=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
    return done.returncode == 0


def run_program(name: str, builder: Builder, rounds: int, threads: int) -> bool:
    """Both ways of dispatch; on the double, what is queued is also delayed and memory poisoned."""
    command = [str(builder.program(name))]
    queued = {"RUDA_ASYNC": "1"}
    if name == "cuda":
        command.append(str(builder.double()))
        queued |= {"RUDA_POISON": "1", "RUDA_DOUBLE_DELAY_US": "20"}
    command += [str(rounds), str(threads)]
    options = OPTIONS[builder.sanitizer]
    ways = [{"RUDA_ASYNC": "0"}, queued]
    good = [run(command, builder.sanitizer, {**options, **way}) for way in ways]
    return all(good)


def main() -> int:
    """Build and run; the process's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], default=[])
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
        for sanitizer in [arguments.only] if arguments.only else sorted(OPTIONS):
            builder = Builder(compiler, sanitizer, arguments.keep or Path(temporary))
            for name in arguments.programs or PROGRAMS:
                good &= run_program(name, builder, arguments.rounds, arguments.threads)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
