"""The command `ruda`: doctor, and bundle where it is there."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command; exits with 0, 1 (an error or a finding) or 2 (wrong usage)."""
    try:
        from ruda_runtime.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("typer", "rich"):
            raise
        print(
            f"ruda: the command needs {error.name}, which is not installed: python -m pip install "
            "'ruda-runtime[cli]'. Without it, `python -m ruda_runtime.doctor` prints the report",
            file=sys.stderr,
        )
        sys.exit(1)
    app(prog_name="ruda")


__all__ = ["main"]
