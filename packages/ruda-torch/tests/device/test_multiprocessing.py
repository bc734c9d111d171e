"""Tensors between processes started with 'spawn': by value, in both directions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).parent))  # a spawned process gets this list
from multiprocessing_workers import SECONDS, D, OnRuda, answer, describe, samples, square


class Process:
    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.end, other = context.Pipe()
        self.process = context.Process(target=answer, args=(other, self.inbox, self.outbox))
        self.process.start()

    def round_trip(self, value: Any) -> tuple[Any, Any]:
        self.inbox.put(value)
        seen, back = self.outbox.get(timeout=SECONDS)
        return seen, back

    def close(self) -> None:
        self.inbox.put(None)
        self.end.send(None)
        self.process.join(SECONDS)
        assert self.process.exitcode == 0


@pytest.fixture(scope="module")
def other_process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


def test_both_directions(other_process: Process) -> None:
    torch.ones(2, device=D)  # the device is in use on this side
    sent = samples()
    seen, back = other_process.round_trip(sent)
    assert seen == describe(sent)
    assert describe(back) == describe(sent)


def test_as_cpu_tensors_but_for_the_device(other_process: Process) -> None:
    here, there = other_process.round_trip(samples("cpu")), other_process.round_trip(samples())

    def as_cpu(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("ruda:0", "cpu")
        if isinstance(value, dict):
            return {key: as_cpu(one) for key, one in value.items()}
        return type(value)(map(as_cpu, value)) if isinstance(value, list | tuple) else value

    assert as_cpu(there[0]) == here[0]
    assert as_cpu(describe(there[1])) == describe(here[1])


def test_by_value_with_views_of_one_message_together(other_process: Process) -> None:
    base = torch.zeros(6, device=D)
    _, (first, second) = other_process.round_trip([base, base[2:]])
    first.fill_(5)
    assert second.tolist() == [5.0] * 4
    assert base.tolist() == [0.0] * 6


def test_a_model_and_its_state(other_process: Process) -> None:
    model = nn.Linear(3, 2).to(D)
    tied = {**model.state_dict(), "tied": model.weight.detach()}
    _, back = other_process.round_trip(tied)
    assert all(torch.equal(back[key].cpu(), tied[key].cpu()) for key in tied)
    assert back["tied"].data_ptr() == back["weight"].data_ptr()


def test_storages(other_process: Process) -> None:
    tensor = torch.arange(4, dtype=torch.int32).to(D)
    _, back = other_process.round_trip(tensor.untyped_storage())
    assert isinstance(back, torch.UntypedStorage)
    assert back.device == tensor.device
    assert torch.tensor([], dtype=torch.int32, device=D).set_(back).tolist() == [0, 1, 2, 3]


def test_a_tensor_that_is_no_leaf_is_refused_as_on_the_cpu() -> None:
    errors = []
    for device in ("cpu", D):
        leaf = torch.ones(2, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad") as caught:
            ForkingPickler.dumps(leaf * 2)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_file_system_sharing() -> None:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy("file_system")
    try:
        tensor = torch.arange(5.0, device=D)
        back = pickle.loads(ForkingPickler.dumps(tensor))
    finally:
        mp.set_sharing_strategy(before)
    assert describe(back) == describe(tensor)


def test_pool() -> None:
    with mp.get_context("spawn").Pool(1) as pool:
        results = pool.map_async(square, [torch.full((2,), float(i), device=D) for i in range(3)])
        values = [result.tolist() for result in results.get(SECONDS)]
    assert values == [[0.0, 0.0], [1.0, 1.0], [4.0, 4.0]]


def test_data_loader_workers() -> None:
    loader = DataLoader(
        OnRuda(), batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=SECONDS
    )
    batches = list(loader)
    assert [batch[0].device for batch in batches] == [torch.device(D, 0)] * 2
    assert [batch[0].tolist() for batch in batches] == [
        [[0.0] * 3, [1.0] * 3],
        [[2.0] * 3, [3.0] * 3],
    ]
    assert [batch[1].tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_registering_imports_nothing() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import ruda_torch\n"
        "print(sorted(n for n in set(sys.modules) - before if 'multiprocessing' in n))"
    )
    # An installed wheel is imported by `import torch` otherwise.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "['ruda_torch._multiprocessing']"
