"""What ruda-finetune provides and requires; see ruda-runtime's `check_abi`.

The packages without torch are checked when `ruda_finetune` is imported, ruda-torch when the first
name that needs it is used, so that the import itself stays light.
"""

from __future__ import annotations

import os
import sys

PROVIDES: dict[str, int] = {}
REQUIRES: dict[str, dict[str, int]] = {
    "ruda-runtime": {"tensor": 10},
    "ruda-blas": {"tensor": 10},
    "ruda-dnn": {"tensor": 10},
}
REQUIRES_LATER: dict[str, dict[str, int]] = {"ruda-torch": {"tensor": 10}}


def broken_installation(error: ImportError) -> str:
    """What an import that failed means to somebody who only started the command."""
    text = str(error) or type(error).__name__
    if type(error).__name__ == "AbiMismatch":  # its text has the pip command
        return text
    return f"{text}; the installation is incomplete: pip install --force-reinstall ruda-finetune"


def is_the_command() -> bool:
    """Whether this process is `ruda-finetune` or `python -m ruda_finetune`, and no program of
    somebody's. While a package is imported for `-m`, that is all that `sys.argv[0]` says."""
    started = sys.argv[0] if sys.argv else ""
    return started == "-m" or os.path.basename(started) == "ruda-finetune"  # noqa: PTH119
