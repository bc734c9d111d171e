"""report.html: one self-contained page about a run (no scripts, no links to elsewhere)."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment

from ruda_finetune._files import readable
from ruda_finetune.report.curve import loss_curve_png


@dataclass
class Sample:
    """One held-out request: what was wanted and what the model said before and after."""

    prompt: str
    expected: str
    before: str
    after: str

    @property
    def exact_before(self) -> bool:
        return self.before.strip() == self.expected.strip()

    @property
    def exact_after(self) -> bool:
        return self.after.strip() == self.expected.strip()


@dataclass
class ReportData:
    """Everything on the page. `facts`, `settings` and `environment` are shown as tables."""

    title: str
    headline: str
    metrics: list[dict[str, Any]]
    facts: dict[str, str]
    settings: dict[str, str]
    environment: dict[str, str]
    samples: list[Sample] = field(default_factory=list)


def write_report(directory: Path, data: ReportData) -> Path:
    """Write loss.png and report.html into `directory`; returns the page's path."""
    title = readable(data.title)
    curve = loss_curve_png(data.metrics, title) if data.metrics else b""
    if curve:
        (directory / "loss.png").write_bytes(curve)
    source = files("ruda_finetune.report").joinpath("report.html.jinja").read_text("utf-8")
    page = Environment(autoescape=True).from_string(source)
    path = directory / "report.html"
    text = page.render(
        data=data,
        curve=base64.b64encode(curve).decode("ascii"),
        exact_before=sum(sample.exact_before for sample in data.samples),
        exact_after=sum(sample.exact_after for sample in data.samples),
    )
    path.write_text(readable(text), encoding="utf-8")
    return path
