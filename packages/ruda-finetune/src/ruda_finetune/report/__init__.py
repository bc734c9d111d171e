"""What a run leaves for people: metrics as JSON lines, a loss curve and one HTML page."""

from __future__ import annotations

from ruda_finetune.report.curve import loss_curve_png
from ruda_finetune.report.metrics import MetricsWriter, read_metrics
from ruda_finetune.report.page import ReportData, Sample, write_report

__all__ = [
    "MetricsWriter",
    "ReportData",
    "Sample",
    "loss_curve_png",
    "read_metrics",
    "write_report",
]
