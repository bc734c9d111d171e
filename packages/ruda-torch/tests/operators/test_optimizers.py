"""torch.optim on ruda against the CPU: every optimiser of PyTorch's database, in every form."""

from __future__ import annotations

import pytest
import torch

from .support import normal

D = "ruda"


def database():
    from torch.testing._internal.common_optimizers import optim_db

    return optim_db


def parameters(device: str) -> list[torch.nn.Parameter]:
    shapes = [(4, 3), (3,), (), (2, 3, 2)]
    return [torch.nn.Parameter(normal(*s, seed=i).to(device)) for i, s in enumerate(shapes)]


def gradients(step: int, params: list[torch.nn.Parameter]) -> None:
    for i, param in enumerate(params):
        param.grad = normal(*param.shape, seed=100 * step + i).to(param.device)


def cases() -> list:
    found = []
    for info in database():
        if info.optim_cls.__name__ in ("SparseAdam", "LBFGS", "Muon"):
            continue
        for index, given in enumerate(info.optim_inputs_func(device="cpu")):
            for form in ("for loop", "foreach", "fused"):
                if form != "for loop" and form not in info.supported_impls:
                    continue
                name = f"{info.optim_cls.__name__}-{given.desc or 'default'}-{index}-{form}"
                found.append(pytest.param(info.optim_cls, given.kwargs, form, id=name))
    return found


@pytest.mark.parametrize(("optimizer", "options", "form"), cases())
def test_optimizer(optimizer, options: dict, form: str) -> None:
    options = dict(options)
    if options.get("capturable"):
        pytest.skip("graphs of another device")
    flags = {"foreach": form == "foreach"} if form != "fused" else {"fused": True}
    states = []
    for device in (D, "cpu"):
        params = parameters(device)
        made = optimizer(params, **{**options, **flags})
        for step in range(3):
            gradients(step, params)
            made.step()
        states.append((params, made))
    (ours, one), (theirs, other) = states
    for a, b in zip(ours, theirs, strict=True):
        assert a.device.type == D
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)
    # The state survives a round trip and training goes on the same.
    again = optimizer(ours, **{**options, **flags})
    again.load_state_dict(one.state_dict())
    gradients(7, ours)
    gradients(7, theirs)
    again.step()
    other.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)


def test_foreach_writes_into_the_parameters() -> None:
    params = parameters(D)
    pointers = [p.data_ptr() for p in params]
    made = torch.optim.AdamW(params, foreach=True)
    gradients(0, params)
    before = [p.detach().clone() for p in params]
    made.step()
    assert [p.data_ptr() for p in params] == pointers
    assert all(not torch.equal(p, b) for p, b in zip(params, before, strict=True))


def test_lbfgs_and_muon() -> None:
    results = []
    for device in (D, "cpu"):
        w = torch.nn.Parameter(normal(4, 3, seed=1).to(device))
        x, y = normal(8, 3, seed=2).to(device), normal(8, 4, seed=3).to(device)
        for made in (torch.optim.LBFGS([w], max_iter=5), torch.optim.Muon([w])):

            def closure(made=made, w=w, x=x, y=y):
                made.zero_grad()
                loss = torch.nn.functional.mse_loss(x @ w.T, y)
                loss.backward()
                return loss

            made.step(closure)
        results.append(w.detach().cpu())
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-3)


def test_clipping_and_scaling_of_many_gradients() -> None:
    ours, theirs = parameters(D) * 1, parameters("cpu")
    for params in (ours, theirs):
        gradients(1, params)
    norm = torch.nn.utils.clip_grad_norm_(ours, 0.5)
    torch.testing.assert_close(norm.cpu(), torch.nn.utils.clip_grad_norm_(theirs, 0.5))
    torch.nn.utils.clip_grad_value_(ours, 0.1)
    torch.nn.utils.clip_grad_value_(theirs, 0.1)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)
