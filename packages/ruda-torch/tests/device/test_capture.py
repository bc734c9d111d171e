"""Graphs of ruda-runtime take RUDA's own operations and refuse those of ATen."""

from __future__ import annotations

import pytest
import torch

import ruda_runtime
import ruda_torch


def test_own_operations_are_captured_and_replayed() -> None:
    gate = torch.tensor([1.0, -2.0, 0.5], device="ruda")
    up = torch.tensor([2.0, 3.0, 4.0], device="ruda")
    with ruda_runtime.Graph.capture() as graph:
        product = ruda_torch.silu_mul(gate, up)
    gate.fill_(0.0)
    graph.replay()
    assert product.cpu().tolist() == [0.0, 0.0, 0.0]
    gate.fill_(1.0)
    graph.replay()
    expected = torch.nn.functional.silu(torch.ones(3)) * up.cpu()
    torch.testing.assert_close(product.cpu(), expected)
    graph.close()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: x.sort(),
        lambda x: x.cpu(),
        lambda x: x.fill_(2.0),
        lambda x: x.clone(),
        lambda x: x.sum(),
        lambda x: x.item(),
    ],
    ids=["add", "sort", "cpu", "fill", "clone", "sum", "item"],
)
def test_operators_of_aten_are_refused(operation) -> None:
    x = torch.ones(1, device="ruda")
    with (
        pytest.raises(RuntimeError, match="on a stream that a graph is capturing"),
        ruda_runtime.Graph.capture(),
    ):
        operation(x)
    assert (x + 1).item() == 2.0  # the stream is as before
