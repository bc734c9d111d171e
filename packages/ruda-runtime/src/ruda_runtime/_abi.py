"""What ruda-runtime provides; see `ruda_runtime.check_abi`."""

from __future__ import annotations

PROVIDES: dict[str, int] = {"tensor": 10}
REQUIRES: dict[str, dict[str, int]] = {}
