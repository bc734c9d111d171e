"""Two of the known traps of out-of-tree devices; the others are tests where their subject is.

Tied weights and lazy views: test_parameters, test_copies. Checkpointing: test_device_module. CPU
programs and the device list of process groups: test_cpu_unharmed. Version bounds: test_loading.
"""

from __future__ import annotations

import pytest
import torch


def test_mixed_devices_are_an_error() -> None:
    there, here = torch.ones(3, 3).to("ruda"), torch.ones(3, 3)
    for operation in (
        lambda: torch.mm(there, here),
        lambda: there + here,
        lambda: torch.cat([there, here]),
        lambda: torch.where(there > 0, there, here),
        lambda: torch.nn.functional.linear(there, here),
        lambda: there.add_(here),
        lambda: torch.mm(there, there, out=torch.empty(3, 3)),
    ):
        with pytest.raises(RuntimeError, match=r"same device|device"):
            operation()
    assert there.cpu().eq(1).all()


def test_a_cpu_scalar_beside_a_ruda_tensor_is_a_number() -> None:
    there = torch.arange(3.0).to("ruda")
    assert (there + torch.tensor(2.0)).tolist() == [2.0, 3.0, 4.0]
    assert (torch.tensor(2.0) * there).tolist() == [0.0, 2.0, 4.0]
    assert (there**2).tolist() == [0.0, 1.0, 4.0]


def test_graphs_do_not_exist_yet_and_say_so() -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)ruda|privateuse1"):
        torch.accelerator.Graph()
