"""The result file: what it holds, how it is written, and when it counts.

The file is a JSON object:

    schema     1
    verdict    "passed", "failed", "partial" (all that was asked for passed, but not all was asked
               for), "rehearsal" (on the driver double, which is no GPU) or "running" (the tool was
               killed)
    sentence   the verdict in words
    started, seconds
    device     what ran: name, driver, compute capability, memory, "real": true for a GPU
    versions   Python, torch, Triton, compilers and the five packages
    source     git revision, whether files differed from it, digest of the sources
    bundle     summary of the bundle's manifest, or null
    phases     [{name, status, seconds, sentence, data}]
    cases      [{id, phase, group, status, seconds, message, accepted, data}]
    left_out   [{id, reason}]: cases of the selected files that say nothing about a GPU
    totals     number of cases by status

A case's status is "passed", "failed", "error", "skipped" or "not_run". All but the first make the
verdict "failed", unless `accepted` says why not.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
STATUSES = ("passed", "failed", "error", "skipped", "not_run")
VERDICTS = ("passed", "failed", "partial", "rehearsal", "running")
PHASE_STATUSES = ("passed", "failed", "running")


@dataclass
class Case:
    """One thing that was checked.

    Attributes:
        id: unique in the file; for a test its pytest id behind the phase.
        phase, group: where it belongs.
        status: one of STATUSES.
        seconds: wall time, with other cases running beside it.
        message: why it is not passed, at most a few lines.
        accepted: why a status other than "passed" does not make the verdict "failed".
        data: numbers: `error` is the largest RMS error as a share of what is allowed.
    """

    id: str
    phase: str
    group: str
    status: str
    seconds: float = 0.0
    message: str = ""
    accepted: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def counts_against(self) -> bool:
        return self.status != "passed" and not self.accepted


@dataclass
class Phase:
    """A part of the run and how it ended."""

    name: str
    status: str = "running"
    seconds: float = 0.0
    sentence: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Record:
    """The result file of one run, written again whenever something is known, at most once a second.

    Attributes:
        path: the file.
        complete: every phase and group was asked for.
    """

    path: Path
    complete: bool = True
    device: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    bundle: dict[str, Any] | None = None
    phases: list[Phase] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    verdict: str = "running"
    sentence: str = "the run did not come to its end"

    def __post_init__(self) -> None:
        self.began = time.time()
        self._lock = threading.RLock()  # a signal may come in the middle
        self._written = 0.0

    def add(self, *cases: Case) -> None:
        with self._lock:
            self.cases += cases
            if time.time() - self._written > 1:
                self._write()

    def leave_out(self, id: str, reason: str) -> None:
        with self._lock:
            if all(each["id"] != id for each in self.left_out):
                self.left_out.append({"id": id, "reason": reason})

    def save(self) -> None:
        with self._lock:
            self._write()

    def finish(self, interrupted: str = "") -> str:
        """Settle the verdict, write the file; returns the sentence."""
        self.verdict, self.sentence = self._judge(interrupted)
        self.save()
        return self.sentence

    def _judge(self, interrupted: str) -> tuple[str, str]:
        against = [each for each in self.cases if each.counts_against]
        passed = sum(each.status == "passed" for each in self.cases)
        if interrupted:
            return "failed", interrupted
        if bad := [phase for phase in self.phases if phase.status != "passed"]:
            reasons = "; ".join(f"{each.name}: {each.sentence}" for each in bad)
            return "failed", f"{len(against)} of {len(self.cases)} cases did not pass. {reasons}"
        if against or not passed:
            return "failed", f"{len(against)} of {len(self.cases)} cases did not pass"
        accepted = len(self.cases) - passed
        extra = f", {accepted} accepted with a reason" if accepted else ""
        if not self.device.get("real"):
            return "rehearsal", (
                f"{passed} cases passed{extra} on the driver double, which is not a GPU: this is "
                "no validation"
            )
        if not self.complete:
            names = ", ".join(phase.name for phase in self.phases)
            return "partial", f"{passed} cases passed{extra}, of a part of the selection: {names}"
        return "passed", f"all {passed} cases passed{extra} on {self.device['name']}"

    def as_dict(self) -> dict[str, Any]:
        totals = Counter(each.status for each in self.cases)
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            "seconds": round(time.time() - self.began, 1),
            "device": self.device,
            "versions": self.versions,
            "source": self.source,
            "bundle": self.bundle,
            "totals": {status: totals.get(status, 0) for status in STATUSES},
            "phases": [asdict(each) for each in self.phases],
            "cases": [asdict(each) for each in self.cases],
            "left_out": self.left_out,
        }

    def _write(self) -> None:
        content = self.as_dict()
        rows = {name: content.pop(name) for name in ("cases", "left_out")}
        text = json.dumps(content, indent=1)[:-2]  # one line a case: the file is read by people too
        for name, each in rows.items():
            lines = ",\n".join(f"  {json.dumps(row)}" for row in each)
            text += f',\n "{name}": [\n{lines}\n ]' if each else f',\n "{name}": []'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(text + "\n}\n")
        temporary.replace(self.path)
        self._written = time.time()


def problems(content: Any) -> list[str]:
    """What keeps the content of a result file from being one; empty when it is well formed."""
    if not isinstance(content, dict):
        return ["it is not a JSON object"]
    kinds: dict[str, type | tuple[type, ...]] = {
        "schema": int, "verdict": str, "sentence": str, "started": str, "seconds": (int, float),
        "device": dict, "versions": dict, "source": dict, "bundle": (dict, type(None)),
        "totals": dict, "phases": list, "cases": list, "left_out": list,
    }  # fmt: skip
    found = list(_fields(content, kinds, "the file"))
    if found:
        return found
    if content["schema"] != SCHEMA:
        found.append(f"schema: got {content['schema']}, wanted {SCHEMA}")
    if content["verdict"] not in VERDICTS:
        found.append(f"verdict: got {content['verdict']!r}, wanted one of {', '.join(VERDICTS)}")
    if not isinstance(content["device"].get("real"), bool):
        found.append("device: `real` is missing")
    row = {"status": str, "seconds": (int, float), "data": dict}
    for phase in content["phases"]:
        found += _row(phase, {"name": str, "sentence": str, **row}, PHASE_STATUSES, "phases")
    texts = dict.fromkeys(("id", "phase", "group", "message", "accepted"), str)
    for case in content["cases"]:
        found += _row(case, {**texts, **row}, STATUSES, "cases")
    for left in content["left_out"]:
        found += _fields(left, {"id": str, "reason": str}, "left_out")
    if found:
        return found
    names = Counter(case["id"] for case in content["cases"])
    found += [f"cases: {name} is there {count} times" for name, count in names.items() if count > 1]
    totals = Counter(case["status"] for case in content["cases"])
    if content["totals"] != {status: totals.get(status, 0) for status in STATUSES}:
        found.append("totals: they are not those of the cases")
    return found


def _fields(row: Any, kinds: dict[str, Any], where: str) -> Iterable[str]:
    if not isinstance(row, dict):
        yield f"{where}: {row!r} is not an object"
        return
    for name, kind in kinds.items():
        if name not in row:
            yield f"{where}: `{name}` is missing"
        elif not isinstance(row[name], kind) or (isinstance(row[name], bool) and kind is not bool):
            yield f"{where}: `{name}` is {row[name]!r}"


def _row(row: Any, kinds: dict[str, Any], statuses: tuple[str, ...], where: str) -> list[str]:
    found = list(_fields(row, kinds, where))
    if not found and row["status"] not in statuses:
        found.append(f"{where}: status {row['status']!r}, wanted one of {', '.join(statuses)}")
    return found


def refusal(content: Any) -> str:
    """Why a result file is no validation; empty when it is one."""
    if found := problems(content):
        return f"it is no result file: {found[0]}" + (
            f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        )
    if not content["device"]["real"]:
        return f"it was not made on a GPU: {content['sentence']}"
    if content["verdict"] != "passed":
        return f"its verdict is {content['verdict']}: {content['sentence']}"
    against = [
        case["id"]
        for case in content["cases"]
        if case["status"] != "passed" and not case["accepted"]
    ]
    if against or not content["cases"]:
        return f"{len(against)} of its {len(content['cases'])} cases did not pass"
    return ""
