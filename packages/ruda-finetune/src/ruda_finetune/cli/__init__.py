"""The command `ruda-finetune`: train, eval, generate."""

from __future__ import annotations


def main() -> None:
    """Entry point of the command; exits with 0, 1 (an error), 2 (wrong usage) or 130 (Ctrl-C)."""
    from ruda_finetune.cli.app import run

    run()


__all__ = ["main"]
