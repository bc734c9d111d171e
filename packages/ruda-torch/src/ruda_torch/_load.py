"""Finding, checking and opening the native module, in that order."""

from __future__ import annotations

import ruda_runtime._native  # noqa: F401
import torch  # noqa: F401

from . import _native as native

native.attach(ruda_runtime._native.api)
