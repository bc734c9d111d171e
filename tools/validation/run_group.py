"""One group of test files in pytest processes: a crash costs one case and a new process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from validation.machine import ROOT
from validation.record import Case, Record
from validation.selection import Group, Selection

SILENCE = 150  # seconds without an event after which a process counts as stuck
RESTARTS = 8


@dataclass
class Outcome:
    """What a group's processes left beside the cases in the record."""

    counts: dict[str, int] = field(default_factory=dict)
    cases: int = 0


class GroupRun:
    """Takes a group through a target and adds its cases to the record as they end."""

    def __init__(
        self,
        record: Record,
        selection: Selection,
        group: Group,
        *,
        phase: str,
        target: str,
        environment: Mapping[str, str],
        folder: Path,
        deadline: float,
    ) -> None:
        self.record, self.selection, self.group = record, selection, group
        self.phase, self.target, self.deadline = phase, target, deadline
        self.environment = dict(environment)
        self.folder = folder
        self.outcome = Outcome()
        self._done: set[str] = set()
        self._waiting: list[str] = []
        self._running = ""
        self._collected = False

    def run(self) -> Outcome:
        for attempt in range(RESTARTS + 1):
            code, stuck, output = self._process(attempt)
            if self._running:
                how = f"no end after {SILENCE} s" if stuck else _ended(code)
                self._end(self._running, "error", f"the process of this case: {how}\n{output}")
            if not self._collected:
                self._end(self._whole("collection"), "error",
                          f"pytest did not start: {_ended(code)}\n{output}")  # fmt: skip
                break
            if not self._left() or self._late():
                break
        why = "the phase's time was over" if self._late() else "the processes before it ended early"
        for id in self._left():
            self._end(id, "not_run", why)
        if not self.outcome.cases:
            self._end(self._whole("selection"), "error", "no case was selected")
        return self.outcome

    def _left(self) -> list[str]:
        return [id for id in self._waiting if id not in self._done]

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _whole(self, what: str) -> str:
        return f"{self.group.name}::{what}"

    def _process(self, attempt: int) -> tuple[int, bool, str]:
        """Returns the exit status, whether it was stuck, and the end of its output."""
        events = self.folder / f"{self.group.name}.{attempt}.jsonl"
        plan = self.folder / f"{self.group.name}.{attempt}.plan.json"
        rules = [(rule.pattern, rule.reason) for rule in self.selection.left_out]
        plan.write_text(json.dumps({"left_out": rules, "done": sorted(self._done)}))
        events.write_text("")
        self._running, self._collected = "", False
        command = [
            sys.executable, "-m", "pytest", "-p", "ruda_runtime.testing.pytest_plugin",
            "--target", self.target, "-p", "validation.pytest_cases", "--tb=short",
            "--continue-on-collection-errors",
            *(["-k", self.group.keyword] if self.group.keyword else []), *self.group.paths,
        ]  # fmt: skip
        values = {"GPU_VALIDATION_EVENTS": str(events), "GPU_VALIDATION_PLAN": str(plan)}
        with events.with_suffix(".log").open("w+") as log, events.open() as stream:
            process = start(command, {**self.environment, **values}, log)
            heard, stuck, over = time.monotonic(), False, False
            while process.poll() is None:
                if self._read(stream):
                    heard = time.monotonic()
                stuck = time.monotonic() - heard > SILENCE
                over = self._late()
                if stuck or over:
                    stop(process)
                    break
                time.sleep(0.05)
            self._read(stream)
            log.seek(0)
            output = log.read()[-1500:]
        if over and self._running:
            self._end(self._running, "not_run", "the phase's time was over while it ran")
            self._running = ""
        return process.returncode, stuck, output

    def _read(self, stream: Any) -> bool:
        heard = False
        while True:
            at = stream.tell()
            line = stream.readline()
            if not line.endswith("\n"):
                stream.seek(at)
                return heard
            heard = True
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "collected":
            self._collected = True
            self._waiting = event["ids"]
            for id, reason in event["left_out"]:
                self.record.leave_out(id, reason)
        elif kind == "start":
            self._running = event["id"]
        elif kind == "end":
            self._running = ""
            names = ("id", "status", "message", "seconds", "data")
            self._end(*(event[name] for name in names))
        elif kind == "finish":
            for name, count in event["counts"].items():
                self.outcome.counts[name] = self.outcome.counts.get(name, 0) + count

    def _end(
        self,
        id: str,
        status: str,
        message: str = "",
        seconds: float = 0.0,
        data: dict[str, Any] | None = None,
    ) -> None:
        if id in self._done:  # what a second process of the group finds again
            return
        self._done.add(id)
        self.outcome.cases += 1
        accepted = ""
        if status == "skipped":
            accepted = self.selection.accepted(id, message, self.target)
        self.record.add(
            Case(f"{self.phase}/{id}", self.phase, self.group.name, status, seconds, message,
                 accepted, data or {})
        )  # fmt: skip


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


_running: set[subprocess.Popen[Any]] = set()


def start(
    command: list[str], environment: Mapping[str, str], log: IO[str]
) -> subprocess.Popen[Any]:
    """Start a command in a session of its own; its output goes to a file."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=dict(environment), stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    _running.add(process)
    return process


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and those that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return


def stop_all() -> None:
    """End whatever is still running."""
    for process in list(_running):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
