"""The environment variables that ruda-torch itself reads, once, at import.

`RUDA_TORCH_ASYNC=0|1`
    0 or unset: an operator has finished when its call returns. 1: RUDA's own kernels are queued on
    the current stream, whose worker runs them. RUDA_ASYNC, ruda-runtime's own name of the same
    setting, counts where this one is not set; different values in the two are an error.
`RUDA_TORCH_LIBRARY=PATH`
    Another build of the native module to load instead of the package's own.
"""

from __future__ import annotations

import os
from pathlib import Path

import ruda_runtime


def asynchronous() -> bool:
    """Whether work is dispatched asynchronously.

    Raises:
        ValueError: a value that is neither 0 nor 1, or two that differ.
    """
    value = os.environ.get("RUDA_TORCH_ASYNC", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"[RUDA_TORCH_ASYNC] got {value!r}, wanted '0' or '1'")
    below = os.environ.get("RUDA_ASYNC", "")
    if value and below and value != below:
        raise ValueError(
            f"[RUDA_TORCH_ASYNC] got {value!r} while RUDA_ASYNC is {below!r}, wanted the same "
            "value in both; unset one of them"
        )
    return "1" in (value, below)


def settle_target() -> None:
    """Choose the target of this process, as RUDA_TARGET says."""
    ruda_runtime.devices()


def check_target() -> None:
    """Refuse a wrong RUDA_TARGET now. GPUs are looked for at the first use of the device."""
    if os.environ.get("RUDA_TARGET", "") not in ("", "auto", "cuda"):
        settle_target()


def library_path() -> Path | None:
    """The native module that RUDA_TORCH_LIBRARY names, if it does."""
    value = os.environ.get("RUDA_TORCH_LIBRARY", "")
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise ImportError(
            f"[RUDA_TORCH_LIBRARY] got {value!r}, which is not a file; wanted the path of a native "
            "module of ruda_torch (_native.*.so)"
        )
    return path.resolve()
