"""What the phases of a run share: the environment, commands with a deadline, the builds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation import machine
from validation.machine import ROOT
from validation.record import Case, Record
from validation.run_group import start, stop
from validation.selection import Selection

BUILDS = (("runtime", "blas", "dnn"), ("torch",))


@dataclass
class Run:
    """What the phases share.

    Attributes:
        target: "cuda", or "double" for rehearsals.
        folder: logs, caches and what is written on the way.
        deadline: of the whole run, on time.monotonic's clock.
        bundle: the folder of a bundle.
        installed: the packages are those of the interpreter, not the checkout's.
    """

    record: Record
    selection: Selection
    target: str
    folder: Path
    jobs: int
    deadline: float
    bundle: Path
    require_demo: bool = False
    installed: bool = False
    build: Build | None = None

    def environment(self, **values: str) -> dict[str, str]:
        """The caller's, with the checkout's packages and settings of the run's own."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RUDA_")}
        path = [] if self.installed else list(map(str, machine.sources()))
        path.append(str(ROOT / "tools"))
        if not machine.can_import("expecttest"):
            path.append(str(ROOT / "tools/validation/stand_ins"))
        path += filter(None, [kept.get("PYTHONPATH", "")])
        driver = {"RUDA_CUDA_DRIVER": "double"} if self.target == "double" else {}
        return {
            **kept, **driver,
            "RUDA_TARGET": "cuda", "RUDA_POISON": "1",
            "RUDA_CACHE_DIR": str(self.folder / "cache"),
            "PYTHONPATH": os.pathsep.join(path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "2"),  # many processes run side by side
            **values,
        }  # fmt: skip

    def bundle_settings(self) -> dict[str, str]:
        """Kernels come from the bundle alone: no compiler, nothing compiled before."""
        hidden = [str(ROOT / "tools/validation/no_triton"), self.environment()["PYTHONPATH"]]
        return {
            "RUDA_BUNDLE": str(self.bundle.resolve()),
            "RUDA_CACHE_DIR": str(self.folder / "empty-cache"),
            "PYTHONPATH": os.pathsep.join(hidden),
        }

    def case(self, phase: str, name: str, status: str, **rest: Any) -> Case:
        case = Case(f"{phase}/{name}", phase, phase, status, **rest)
        self.record.add(case)
        return case


@dataclass
class Done:
    """A finished command: exit status (None: its time was over), output, seconds."""

    code: int | None
    output: str
    seconds: float

    @property
    def tail(self) -> str:
        return self.output[-1500:].strip()

    @property
    def how(self) -> str:
        return "its time was over" if self.code is None else f"exit status {self.code}"


def command(
    arguments: list[str], environment: Mapping[str, str], deadline: float, log: Path
) -> Done:
    """Run a command until a deadline; its output goes to a file."""
    began = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = start(arguments, environment, output)
        try:
            code: int | None = process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            stop(process)
            code = None
    return Done(code, log.read_text(errors="replace"), time.monotonic() - began)


class Build:
    """Plain CMake builds of the native modules; ruda-torch's goes on beside the first cases."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._ended = {name: threading.Event() for names in BUILDS for name in names}
        self._failed = ""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        plain = [] if machine.can_import("scipy_openblas32") else ["--without-openblas"]
        # The rest of ruda-torch's build takes the time of the next phases too.
        deadline = time.monotonic() + (self.run.deadline - time.monotonic()) * 0.6
        for names in BUILDS:
            if not self._failed:
                done = command(
                    [sys.executable, "tools/develop.py", "--no-path-file", "--jobs",
                     str(self.run.jobs), *plain, *names],
                    self.run.environment(RUDA_TARGET="host"), deadline,
                    self.run.folder / f"build-{names[-1]}.log",
                )  # fmt: skip
                if done.code != 0:
                    self._failed = f"the build of {', '.join(names)}: {done.how}\n{done.tail}"
                self.run.case(
                    "build", "-".join(names), "passed" if done.code == 0 else "error",
                    seconds=round(done.seconds, 1), message=self._failed,
                    data={"openblas": not plain} if "blas" in names else {},
                )  # fmt: skip
            for name in names:
                self._ended[name].set()

    def wait(self, needs: str) -> str:
        """Wait until a package and those below are built; returns what went wrong."""
        last = "torch" if needs in ("torch", "finetune") else "dnn"
        self._ended[last].wait()
        return self._failed
