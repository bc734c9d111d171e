"""torch's own optimisers on the device, in every implementation PyTorch offers it."""

from __future__ import annotations

import pytest
import torch

CASES = [
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"foreach": False, "amsgrad": True}),
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.Adam, {"fused": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
    (torch.optim.Adagrad, {"fused": True}),
    (torch.optim.RMSprop, {"foreach": True, "centered": True}),
]


def trained(device: str, kind: type[torch.optim.Optimizer], options: dict[str, object]) -> list:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    model.to(device)
    optimiser = kind(model.parameters(), lr=0.05, **options)
    data = torch.linspace(-1, 1, 20).view(5, 4).to(device)
    for step in range(4):
        if step == 2:  # state survives a round trip
            state = optimiser.state_dict()
            optimiser = kind(model.parameters(), lr=0.05, **options)
            optimiser.load_state_dict(state)
        optimiser.zero_grad()
        model(data).square().sum().backward()
        optimiser.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_training_equals_the_cpu(
    kind: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    for there, here in zip(trained("ruda", kind, options), trained("cpu", kind, options)):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=2e-6)
