"""What the public functions share: argument kinds, dtype names, outputs."""

from __future__ import annotations

from typing import Any

from ruda_runtime import Tensor

from .errors import BlasError


def check_tensor(value: Any, operation: str, name: str, error: type[BlasError]) -> Tensor:
    """``value`` if it is a Tensor; raises ``error`` otherwise."""
    if not isinstance(value, Tensor):
        raise error(
            f"[{operation}] {name}: got {type(value).__name__}, wanted a ruda_runtime.Tensor"
        )
    return value


def result_dtype(
    out: Tensor | None, asked: str | None, natural: str, operation: str, error: type[BlasError]
) -> str:
    """The dtype name of a result: ``asked``, else that of ``out``, else ``natural``."""
    if out is None:
        return asked or natural
    if asked is not None and asked != out.dtype_name:
        raise error(
            f"[{operation}] out_dtype: got {asked} with an out of dtype {out.dtype_name}, wanted "
            "one of them, or the same dtype in both"
        )
    return out.dtype_name
