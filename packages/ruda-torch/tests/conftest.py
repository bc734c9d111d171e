"""Fresh device memory is poisoned in every test of the package: a kernel that reads what it did not
write gives NaN."""

from __future__ import annotations

import os

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")

import ruda_torch  # noqa: F401  # registers the device for every test
