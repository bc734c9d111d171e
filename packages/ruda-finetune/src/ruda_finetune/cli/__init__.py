"""The command `ruda-finetune`: train, eval, generate."""

from __future__ import annotations

import sys

from ruda_finetune._abi import broken_installation


def main() -> None:
    """Entry point of the command; exits with 0, 1 (an error), 2 (wrong usage) or 130 (Ctrl-C)."""
    try:
        from ruda_finetune.cli.app import run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except ImportError as error:
        print(f"error: {broken_installation(error)}", file=sys.stderr)
        sys.exit(1)


__all__ = ["main"]
