"""torch.amp.GradScaler on the cuda target: the CPU's scales, gradients and skipped steps."""

from __future__ import annotations

import math

import torch

import ruda_torch  # noqa: F401


def run(device: str) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(1)
    weights = [torch.randn(4, 3), torch.randn(0), torch.randn(2)]
    weights = [weight.to(device).requires_grad_() for weight in weights]
    optimiser = torch.optim.SGD(weights, lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
    scales = []
    for factor in (1.0, math.inf, 1.0, 1.0, 1.0, math.nan):
        optimiser.zero_grad()
        loss = torch.stack([weight.square().sum() for weight in weights]).sum() * factor
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [weight.detach().cpu() for weight in weights]


def test_a_run_is_the_cpus() -> None:
    scales, weights = run("ruda")
    wanted_scales, wanted = run("cpu")
    assert scales == wanted_scales == [8.0, 4.0, 4.0, 8.0, 8.0, 4.0]
    for weight, right in zip(weights, wanted, strict=True):
        torch.testing.assert_close(weight, right)


def test_half_precision_gradients_and_the_largest_scale() -> None:
    found = torch.zeros(1, device="ruda")
    gradients = [torch.tensor([2.0, -6.0], device="ruda", dtype=torch.float16)]
    half = torch.tensor([0.5], device="ruda")
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, half)
    assert gradients[0].tolist() == [1.0, -3.0] and found.item() == 0
    gradients[0][1] = -math.inf
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, half)
    assert found.item() == 1
    scale = torch.tensor([3e38], device="ruda")  # twice it is no float32
    steps = torch.zeros(1, dtype=torch.int32, device="ruda")
    torch._amp_update_scale_(scale, steps, found * 0, 2.0, 0.5, 1)
    assert scale.item() == torch.tensor(3e38).item() and steps.item() == 0
