"""Importing this module checks ruda-torch and thereby registers the device `ruda`."""

from __future__ import annotations

from ruda_runtime import check_abi

from ._abi import PROVIDES, REQUIRES_LATER
from ._version import __version__

check_abi("ruda-finetune", __version__, PROVIDES, REQUIRES_LATER)
