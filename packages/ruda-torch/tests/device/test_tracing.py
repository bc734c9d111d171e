"""Tracing: the device under torch.compile's capturing backends."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_run_and_differentiate(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.ones(2, device="ruda") + torch.tensor([1.0, 2.0], device=x.device)).sum()

    torch._dynamo.reset()
    x = torch.tensor([3.0, 4.0]).to("ruda").requires_grad_()
    out = torch.compile(function, backend=backend, fullgraph=True)(x)
    out.backward()
    assert out.item() == 10.0
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]


def test_constants_are_made_on_the_device() -> None:
    # A constant made on the CPU and copied would be a hidden transfer in every call.
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.ones(2).to("ruda")
    graph = make_fx(lambda x: x + torch.ones(2, device=x.device), tracing_mode="fake")(x)
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert not any("_to_copy" in name or "device_put" in name for name in names)
    assert graph(x).tolist() == [2.0, 2.0]
