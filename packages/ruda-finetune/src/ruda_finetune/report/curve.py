"""The loss curve as a PNG."""

from __future__ import annotations

import io
from typing import Any


def loss_curve_png(rows: list[dict[str, Any]], title: str) -> bytes:
    """Draw loss over optimiser steps, with the learning rate below it.

    Args:
        rows: metrics rows with `step`, `loss` (nats per supervised token) and `lr`.
        title: the figure's heading.
    """
    # pyplot would look for a display; the object interface draws into memory only.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(8, 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    upper.plot(steps, [row["loss"] for row in rows], color="#2563eb", linewidth=1.6)
    upper.set_ylabel("loss (nats per token)")
    upper.set_title(title)
    upper.grid(alpha=0.3)
    upper.set_ylim(bottom=0)
    lower.plot(steps, [row["lr"] for row in rows], color="#64748b", linewidth=1.2)
    lower.set_ylabel("lr")
    lower.set_xlabel("optimiser step")
    lower.grid(alpha=0.3)
    lower.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    lower.xaxis.get_major_locator().set_params(integer=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
