"""What the processes of test_multiprocessing run: importable by name where they start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import ruda_torch  # noqa: F401  # a source checkout has no entry point that registers the device

D = "ruda"
SECONDS = 60


def describe(value: Any) -> Any:
    """What a receiver sees, in plain values."""
    if isinstance(value, Tensor):
        return (
            type(value).__name__, str(value.device), value.dtype, value.tolist(), value.stride(),
            value.storage_offset(), value.untyped_storage().nbytes(), value.requires_grad,
            value.is_leaf,
        )  # fmt: skip
    if isinstance(value, dict):
        return {key: describe(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [describe(one) for one in value]
    return value


def samples(device: str = D) -> dict[str, Any]:
    base = torch.arange(12.0).to(device)
    return {
        "float": base.clone(),
        "half": torch.tensor([1.5, -2.0]).to(device, torch.float16),
        "bool": torch.tensor([True, False]).to(device),
        "complex": torch.tensor([1 + 2j]).to(device),
        "number": torch.tensor(3).to(device),
        "empty": torch.empty(0, 3).to(device),
        "views": [base, base[3:9:2], base.view(3, 4).t()],
        "leaf": torch.ones(2).to(device).requires_grad_(),
        "parameter": nn.Parameter(torch.ones(2).to(device), requires_grad=False),
        "beside a cpu tensor": [torch.ones(2), torch.ones(2).to(device)],
    }


def answer(connection: Any, inbox: Any, outbox: Any) -> None:
    """Everything that comes goes back, with its description."""
    while (value := inbox.get(timeout=SECONDS)) is not None:
        outbox.put((describe(value), value))
    connection.recv()  # the sender must live until the receiver has opened the shared memory


def square(tensor: Tensor) -> Tensor:
    return tensor * tensor


class OnRuda(Dataset):  # type: ignore[type-arg]
    """Samples made on the device by the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3,), float(index), device=D), index
