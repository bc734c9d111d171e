"""What a run leaves for people: a loss curve and one self-contained HTML page."""

from __future__ import annotations

from ruda_finetune.report.curve import loss_curve_png
from ruda_finetune.report.page import ReportData, Sample, write_report

__all__ = [
    "ReportData",
    "Sample",
    "loss_curve_png",
    "write_report",
]
