"""A pytest plugin that writes what becomes of each test at once, one JSON line an event.

    python -m pytest -p validation.pytest_cases ...

GPU_VALIDATION_EVENTS names the file that is appended to. GPU_VALIDATION_PLAN names a JSON file with
`left_out` ([[pattern, reason]], patterns of fnmatch on pytest ids) and `done` (ids). Events:

    {"event": "collected", "ids": [...], "left_out": [[id, reason], ...]}
    {"event": "start", "id"}
    {"event": "end", "id", "status", "seconds", "message", "data"}
    {"event": "lost", "message"}     the GPU's context is gone: the process ends
    {"event": "finish", "counts"}    where the code of the kernels came from
"""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

_MESSAGE = 1200  # characters kept of a failure's text


class _Reporter:
    def __init__(self, events: Path, plan: dict[str, Any]) -> None:
        self.parent = os.getppid()
        self.events = events.open("a", buffering=1)
        self.left_out: list[tuple[str, str]] = [tuple(each) for each in plan["left_out"]]
        self.done = set(plan["done"])
        self.seconds = 0.0
        self.status, self.message = "", ""
        self.errors: list[float] = []

    def write(self, event: str, **values: Any) -> None:
        self.events.write(json.dumps({"event": event, **values}) + "\n")
        self.events.flush()

    # Behind the packages' own conftest files, which add skip marks.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, left_out = [], []
        for item in items:
            reason = next(
                (why for what, why in self.left_out if fnmatchcase(item.nodeid, what)), ""
            )
            if reason:
                left_out.append((item.nodeid, reason))
            elif item.nodeid not in self.done:
                kept.append(item)
        self.write("collected", ids=[item.nodeid for item in kept], left_out=left_out)
        items[:] = kept
        _observe_conformance(self.errors)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._end(f"{report.nodeid}::collection", "error", report.longreprtext)
        elif report.skipped:  # a whole file: pytest.importorskip
            self._end(f"{report.nodeid}::collection", "skipped", _skip_reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if os.getppid() != self.parent:
            pytest.exit("the tool that reads these events was killed", returncode=1)
        self.seconds, self.status, self.message = 0.0, "", ""
        self.errors.clear()
        self.write("start", id=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.failed:
            self.status = "failed" if report.when == "call" else "error"
            self.message = report.longreprtext + "".join(
                f"\n{title}: {text}" for title, text in report.sections if "double" in title
            )
        elif report.skipped and not self.status:
            self.status, self.message = "skipped", _skip_reason(report)
        elif report.when == "call" and hasattr(report, "wasxfail"):
            self.status, self.message = "failed", f"passed, though not expected: {report.wasxfail}"
        elif report.when == "call" and not self.status:
            self.status = "passed"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._end(nodeid, self.status or "error", self.message)
        if self.status in ("failed", "error") and (lost := _lost_context()):
            self.write("lost", message=lost)
            pytest.exit(f"the GPU's context is lost: {lost}", returncode=1)

    def pytest_sessionfinish(self) -> None:
        counts: dict[str, int] = {}
        kernel = sys.modules.get("ruda_runtime.kernel")
        if kernel is not None:
            counts = kernel.compile_counts()
        self.write("finish", counts=counts)

    def _end(self, nodeid: str, status: str, message: str) -> None:
        text = message.strip()
        if len(text) > _MESSAGE:  # what was wanted stands at the end
            text = f"{text[: _MESSAGE // 3]}\n…\n{text[-2 * _MESSAGE // 3 :]}"
        data = {"error": max(self.errors)} if self.errors else {}
        self.write("end", id=nodeid, status=status, seconds=round(self.seconds, 4), message=text,
                   data=data)  # fmt: skip


def _skip_reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def _observe_conformance(errors: list[float]) -> None:
    """Note the RMS error of every comparison as a share of what it may be."""
    conformance: Any = sys.modules.get("ruda_runtime.conformance")
    if conformance is None:
        return
    check = conformance.check

    def observed(actual: Any, reference: Any, dtype: str, **how: Any) -> Any:
        deviation = check(actual, reference, dtype, **how)
        limit = how.get("limit") or conformance.LIMITS[dtype]
        errors.append(
            round(deviation.relative / (limit * (3 if how.get("long_reduction") else 1)), 4)
        )
        return deviation

    conformance.check = observed


def _lost_context() -> str:
    """What the runtime says when it cannot use the GPU any more; every later test would fail."""
    runtime = sys.modules.get("ruda_runtime")
    if runtime is None or os.environ.get("RUDA_TARGET") != "cuda":
        return ""
    for _ in range(2):  # the first call may bring an error of queued work, once
        try:
            runtime.synchronize()
            return ""
        except Exception as error:
            text = str(error)
    return text


def pytest_configure(config: pytest.Config) -> None:
    # Of pytest-timeout, which may be missing: stuck processes are ended from outside.
    config.addinivalue_line("markers", "timeout: seconds that a test may take")
    plan = json.loads(Path(os.environ["GPU_VALIDATION_PLAN"]).read_text())
    reporter = _Reporter(Path(os.environ["GPU_VALIDATION_EVENTS"]), plan)
    config.pluginmanager.register(reporter, "gpu-validation-cases")
