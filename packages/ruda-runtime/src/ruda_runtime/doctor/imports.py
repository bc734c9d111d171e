"""What importing the packages gives, found out in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SECONDS = 180.0
_MARK = "@ruda-doctor "


@dataclass
class Imports:
    """The probe's answers.

    Attributes:
        packages: for each package that was imported, its error (``None`` or type and text) and the
            ABI number of its native module.
        facts: the other steps (target, threads, driver, torch) by name.
        ended: ``None``, or the package that was being imported when the process ended (``""``: none
            yet), and how it ended.
    """

    packages: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: tuple[str, str] | None = None


def probe(packages: Sequence[str], environment: Mapping[str, str]) -> Imports:
    """Import the packages in order, in a new process of the same interpreter."""
    code = Path(__file__).with_name("probe.py").read_text(encoding="utf-8")
    command = [sys.executable, "-P", "-c", code, json.dumps(sys.path), json.dumps(list(packages))]
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True,
                              timeout=_SECONDS)  # fmt: skip
        output = done.stdout.decode(errors="replace")
        how = _how(done.returncode, done.stderr.decode(errors="replace"))
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode(errors="replace") if late.stdout else ""
        how = f"did not end within {_SECONDS:.0f} seconds"
    found, at = Imports(), ""
    for line in output.split("\n"):
        if not line.startswith(_MARK):
            continue
        said = json.loads(line.removeprefix(_MARK))
        step = said.pop("step")
        if step == "import":
            at = said["package"]
        elif step == "imported":
            found.packages[said.pop("package")] = said
        elif step == "done":
            return found
        else:
            found.facts[step] = said
    found.ended = (at, how)
    return found


def _how(status: int, errors: str) -> str:
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    return f"ended with code {status}: {last.strip()}" if last else f"ended with code {status}"
