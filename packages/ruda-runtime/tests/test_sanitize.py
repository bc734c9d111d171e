"""The native library under AddressSanitizer and ThreadSanitizer: tools/sanitize.py, a short run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[3] / "tools" / "sanitize.py"


def test_the_stress_program_is_clean() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--rounds", "200"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 wrong") == 4, done.stdout
