"""Ruda tensors through torch.multiprocessing: by value.

A storage on ruda travels as a CPU storage with its bytes, in shared memory as every CPU storage
does, and becomes a storage on ruda at the other end. Tensors, parameters and views are torch's own
affair: they go as their storage, so that views of one storage in one message share memory there as
well.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

# `import torch` has imported it, so that this costs nothing; it registers reductions of its own.
from torch.multiprocessing import reductions

from .device_module import synchronize

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def _to_ruda(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return torch.UntypedStorage(storage.nbytes(), device="ruda").copy_(storage)


def _reduce_storage(storage: torch.UntypedStorage) -> Reduced:
    if storage.device.type != "ruda":
        reduced: Reduced = reductions.reduce_storage(storage)
        return reduced
    # A queue pickles on a thread of its own, whose current stream is not the one that writes here.
    synchronize()
    size = storage.nbytes()
    # Shared memory of no bytes does not exist.
    there = torch.UntypedStorage._new_shared(size) if size else torch.UntypedStorage(0)
    return _to_ruda, (there.copy_(storage),)


def register() -> None:
    """Teach multiprocessing's pickler to send storages on ruda."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
