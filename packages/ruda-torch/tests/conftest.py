"""Fresh device memory is poisoned in every test of the package: a kernel that reads what it did not
write gives NaN."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the device for every test, behind --target, which may change the target."""
    import ruda_torch  # noqa: F401
