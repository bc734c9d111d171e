"""The page stands alone, escapes what a model said, and counts exact answers."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from ruda_finetune.report import ReportData, Sample, write_report


def rows(count: int) -> list[dict[str, float]]:
    return [{"step": i + 1, "loss": 2.0 / (i + 1), "lr": 1e-4} for i in range(count)]


def test_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    samples = [
        Sample("Say <b>", '{"a": 1}', "<script>alert(1)</script>", '{"a": 1}\n'),
        Sample("Say no", "no", "no", "yes"),
    ]
    data = ReportData(
        title="A & B", headline="done", metrics=rows(5), facts={"tokens/s": "12"},
        settings={"rank": "16"}, environment={"torch": "2"}, samples=samples,
    )  # fmt: skip
    page = write_report(tmp_path, data).read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page and "A &amp; B" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "1 of 2 before,\n1 of 2 after" in page
    (encoded,) = re.findall(r"data:image/png;base64,([^\"]+)", page)
    png = base64.b64decode(encoded)
    assert png.startswith(b"\x89PNG") and png == (tmp_path / "loss.png").read_bytes()


def test_page_without_steps_or_samples(tmp_path: Path) -> None:
    data = ReportData("t", "nothing was trained", [], {}, {}, {})
    assert "<img" not in write_report(tmp_path, data).read_text()
    assert not (tmp_path / "loss.png").exists()
