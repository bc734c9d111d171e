"""ruda_torch.AdamW beside torch.optim.AdamW on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ruda_torch
from ruda_torch.training import checkpoint

from .support import normal, on_ruda, same_bits

SHAPES = [(7, 5), (300,), (20_000,), ()]


def pair(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """float32 parameters on the CPU, and the same values (rounded) on ruda."""
    start = [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(SHAPES)]
    return [p.float().clone().requires_grad_() for p in start], [on_ruda(p) for p in start]


def give_gradients(step: int, left: list[Tensor], right: list[Tensor], scale: float = 1.0) -> None:
    for i, (a, b) in enumerate(zip(left, right)):
        gradient = normal(*a.shape, dtype=b.dtype, seed=1000 * step + i)
        a.grad = gradient.float()
        b.grad = (scale * gradient.float()).to(b.dtype).to("ruda")


@pytest.mark.parametrize("fused_step", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1e-2, "weight_decay": 0.3, "betas": (0.8, 0.95), "eps": 1e-6},
        {"betas": (0.0, 0.9)},
    ],
)
def test_forty_steps_of_float32_parameters(options: dict, fused_step: bool) -> None:
    left, right = pair(torch.float32)
    peer = torch.optim.AdamW(left, foreach=False, **options)
    own = ruda_torch.AdamW(right, fused_step=fused_step, **options)
    for step in range(40):
        give_gradients(step, left, right, scale=1024.0)
        peer.step()
        own.step(loss_scale=1024.0)
        assert own.last_step_had_grad
        assert not own.last_step_skipped
    for a, b in zip(left, right):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-6, atol=1e-6)
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                own.state[b][name].cpu(), peer.state[a][name], rtol=1e-5, atol=1e-7
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_of_16_bit_parameters_follow_float32(dtype: torch.dtype) -> None:
    left, right = pair(dtype)
    peer = torch.optim.AdamW(left, lr=1e-4, foreach=False)
    own = ruda_torch.AdamW(right, lr=1e-4)
    for step in range(40):
        give_gradients(step, left, right)
        peer.step()
        own.step()
    for a, b in zip(left, right):
        master = own.state[b]["master"].cpu()
        assert master.dtype == torch.float32
        torch.testing.assert_close(master, a.detach(), rtol=1e-6, atol=1e-6)
        assert torch.equal(b.detach().cpu(), master.to(dtype))


def test_groups_schedulers_and_missing_gradients() -> None:
    left, right = pair(torch.float32)
    optimizers = []
    for cls, parameters in ((torch.optim.AdamW, left), (ruda_torch.AdamW, right)):
        groups = [
            {"params": parameters[:2], "weight_decay": 0.0},
            {"params": parameters[2:], "lr": 5e-2},
        ]
        optimizers.append(cls(groups, lr=1e-2))
    schedules = [torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5) for o in optimizers]
    for step in range(10):
        give_gradients(step, left, right)
        if step % 3 == 1:  # this parameter's step count falls behind the others'
            left[1].grad = right[1].grad = None
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
    assert optimizers[1].state[right[1]]["step"] == 7
    for a, b in zip(left, right):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6])
def test_clipping_is_torchs(max_grad_norm: float) -> None:
    left, right = pair(torch.float32)
    peer = torch.optim.AdamW(left, foreach=False)
    own = ruda_torch.AdamW(right, fused_step=True, max_grad_norm=max_grad_norm)
    for step in range(5):
        give_gradients(step, left, right, scale=512.0)
        before = [p.grad.clone() for p in right]
        norm = torch.nn.utils.clip_grad_norm_(left, max_grad_norm)
        peer.step()
        own.step(loss_scale=512.0)
        assert own.last_grad_norm == pytest.approx(norm.item(), rel=1e-5)
        assert own.last_clip_coef == pytest.approx(min(1.0, max_grad_norm / norm.item()), rel=1e-5)
        assert all(same_bits(p.grad, old) for p, old in zip(right, before))
    for a, b in zip(left, right):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=2e-6, atol=1e-6)


def test_default_path_unscales_gradients_in_place() -> None:
    _, right = pair(torch.float32)
    own = ruda_torch.AdamW(right)
    for parameter in right:
        parameter.grad = torch.full_like(parameter, 8.0)
    own.step(loss_scale=16.0)
    assert all((p.grad.cpu() == 0.5).all() for p in right)
    assert own.last_grad_norm is None


@pytest.mark.parametrize("fused_step", [False, True])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_one_bad_gradient_skips_the_whole_update(fused_step: bool, bad: float) -> None:
    left, right = pair(torch.bfloat16)
    own = ruda_torch.AdamW(right, fused_step=fused_step)
    give_gradients(0, left, right)
    own.step()
    before = [p.detach().clone() for p in right]
    copies = [{k: v.clone() for k, v in own.state[p].items() if k != "step"} for p in right]
    give_gradients(1, left, right)
    with torch.no_grad():
        right[2].grad[19_999] = bad
    own.step()
    assert own.last_step_skipped
    assert own.last_step_had_grad
    assert own.last_clip_coef is None
    for parameter, old, copied in zip(right, before, copies):
        assert same_bits(parameter, old)
        assert own.state[parameter]["step"] == 1
        assert all(same_bits(own.state[parameter][key], copied[key]) for key in copied)
    give_gradients(2, left, right)
    own.step()
    assert not own.last_step_skipped
    assert own.state[right[0]]["step"] == 2


def test_no_gradient_at_all() -> None:
    _, right = pair(torch.float32)
    own = ruda_torch.AdamW(right)
    before = [p.detach().clone() for p in right]
    own.step()
    assert not own.last_step_had_grad
    assert not own.last_step_skipped
    assert all(same_bits(p, old) for p, old in zip(right, before))
    assert not own.state


def test_one_launch_updates_all_parameters() -> None:
    left, right = pair(torch.bfloat16)
    own = ruda_torch.AdamW(right)
    give_gradients(0, left, right)
    own.step()
    give_gradients(1, left, right)
    before = ruda_torch.execution_stats()["native_launches"]
    own.step()
    assert ruda_torch.execution_stats()["native_launches"] - before <= 3  # finite flag, update


def test_closure_runs_with_gradients() -> None:
    x = on_ruda(torch.ones(4))
    own = ruda_torch.AdamW([x], lr=0.1, weight_decay=0.0)

    def closure() -> Tensor:
        own.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    assert own.step(closure).item() == 4.0
    torch.testing.assert_close(x.detach().cpu(), torch.full((4,), 0.9))


def test_transposed_parameters_and_gradients_of_another_layout() -> None:
    start = normal(6, 4, dtype=torch.float32, seed=1)
    left = start.clone().requires_grad_()
    right = start.to("ruda").t().contiguous().t().requires_grad_()
    assert not right.is_contiguous()
    peer, own = torch.optim.AdamW([left]), ruda_torch.AdamW([right])
    for step in range(3):
        gradient = normal(6, 4, dtype=torch.float32, seed=step)
        left.grad, right.grad = gradient, gradient.to("ruda")
        peer.step()
        own.step()
    torch.testing.assert_close(right.detach().cpu(), left.detach(), rtol=1e-6, atol=1e-6)


def test_autograd_notices_that_a_parameter_has_changed() -> None:
    parameter = on_ruda(torch.ones(4))
    own = ruda_torch.AdamW([parameter])
    y = (parameter * parameter).sum()
    parameter.grad = torch.ones_like(parameter)
    own.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_state_is_kept_in_the_parameters_layout() -> None:
    parameter = on_ruda(torch.ones(4, 3)).detach().t().requires_grad_()
    for value in list(checkpoint.fresh_state(parameter).values())[1:]:
        assert value.stride() == parameter.stride()
