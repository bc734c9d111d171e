"""What ruda-blas provides and requires; see ruda-runtime's `check_abi`."""

from __future__ import annotations

PROVIDES: dict[str, int] = {"tensor": 10}
REQUIRES: dict[str, dict[str, int]] = {"ruda-runtime": {"tensor": 10}}
