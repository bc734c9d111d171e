"""What ruda-finetune provides and requires; see ruda-runtime's `check_abi`.

The packages without torch are checked when `ruda_finetune` is imported, ruda-torch when the first
name that needs it is used, so that the import itself stays light.
"""

from __future__ import annotations

PROVIDES: dict[str, int] = {}
REQUIRES: dict[str, dict[str, int]] = {
    "ruda-runtime": {"tensor": 10},
    "ruda-blas": {"tensor": 10},
    "ruda-dnn": {"tensor": 10},
}
REQUIRES_LATER: dict[str, dict[str, int]] = {"ruda-torch": {"tensor": 10}}
