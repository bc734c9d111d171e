"""AdamW's checkpoints: complete, checked before they are used, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

import ruda_torch

from .support import normal, on_ruda, same_bits


def parameters(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [on_ruda(normal(*shape, dtype=dtype, seed=i)) for i, shape in enumerate([(5, 3), (40,)])]


def train(optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
            gradient = normal(*parameter.shape, dtype=parameter.dtype, seed=100 * step + i)
            parameter.grad = gradient.to("ruda")
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused_step", [False, True])
def test_resumed_equals_uninterrupted_bit_for_bit(dtype: torch.dtype, fused_step: bool) -> None:
    options = {"lr": 1e-2, "fused_step": fused_step}
    if fused_step:
        options["max_grad_norm"] = 1.0
    straight = parameters(dtype)
    train(ruda_torch.AdamW(straight, **options), range(8))
    first = parameters(dtype)
    stopped = ruda_torch.AdamW(first, **options)
    train(stopped, range(3))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    resumed = [p.detach().clone().requires_grad_() for p in first]
    second = ruda_torch.AdamW(resumed, lr=7.0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.fused_step == fused_step
    assert second.max_grad_norm == options.get("max_grad_norm")
    assert second.param_groups[0]["lr"] == 1e-2
    train(second, range(3, 8))
    for a, b in zip(straight, resumed):
        assert same_bits(a, b)


def test_state_dict_is_complete() -> None:
    own = ruda_torch.AdamW(parameters(), fused_step=True, max_grad_norm=2.0)
    train(own, range(2))
    state = own.state_dict()
    assert state["step_options"] == {"version": 1, "fused_step": True, "max_grad_norm": 2.0}
    assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq", "master"}
    assert state["state"][0]["step"] == 2
    assert all(state["state"][1][k].dtype == torch.float32 for k in ("exp_avg", "master"))
    assert set(state["param_groups"][0]) >= {"lr", "betas", "eps", "weight_decay", "params"}


def test_loading_copies_and_keeps_the_schedulers_fields() -> None:
    own = ruda_torch.AdamW(parameters())
    train(own, range(1))
    other = ruda_torch.AdamW(parameters())
    torch.optim.lr_scheduler.StepLR(other, 3)
    saved = own.state_dict()
    other.load_state_dict(saved)
    assert "initial_lr" in other.param_groups[0]
    master = other.state[other.param_groups[0]["params"][0]]["master"]
    assert master.data_ptr() != saved["state"][0]["master"].data_ptr()
    train(other, range(1, 2))
    assert own.state[own.param_groups[0]["params"][0]]["step"] == 1


def test_a_checkpoint_without_options_keeps_ours() -> None:
    own = ruda_torch.AdamW(parameters(), fused_step=True, max_grad_norm=3.0)
    train(own, range(1))
    saved = own.state_dict()
    del saved["step_options"]
    own.load_state_dict(saved)
    assert (own.fused_step, own.max_grad_norm) == (True, 3.0)


def test_torchs_float32_checkpoint_continues_here() -> None:
    left = [normal(9, dtype=torch.float32, seed=0).requires_grad_()]
    right = [on_ruda(left[0].detach().clone())]
    peer = torch.optim.AdamW(left, lr=1e-2)
    own = ruda_torch.AdamW(right)
    for step in range(6):
        left[0].grad = normal(9, dtype=torch.float32, seed=step + 1)
        if step == 3:
            own.load_state_dict(peer.state_dict())
            with torch.no_grad():
                right[0].copy_(left[0])
        if step >= 3:
            right[0].grad = left[0].grad.to("ruda")
            own.step()
        peer.step()
    torch.testing.assert_close(right[0].detach().cpu(), left[0].detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda s: s["step_options"].update(version=2), "got version 2, wanted 1"),
        (lambda s: s["step_options"].update(hierarchical_stats=True), "hierarchical_stats"),
        (lambda s: s["step_options"].update(max_grad_norm=1.0), "max_grad_norm: got 1.0 with"),
        (lambda s: s["state"][0].pop("master"), r"state\[0\] of the checkpoint: got"),
        (lambda s: s["state"][1].update(momentum=1), r"state\[1\] of the checkpoint: got"),
        (
            lambda s: s["state"][1].update(exp_avg=torch.zeros(41)),
            r"shape \[41\], wanted \[40\]",
        ),
        (lambda s: s["state"][1].update(exp_avg=torch.zeros(40).half()), "got dtype torch.float16"),
        (lambda s: s["state"].update({7: s["state"][0]}), r"unknown parameters \['7'\]"),
        (lambda s: s["state"][0].update(step=0), r"\['step'\]: got 0"),
        (lambda s: s["param_groups"].append(s["param_groups"][0]), "got 2 groups, wanted 1"),
        (lambda s: s["param_groups"][0]["params"].pop(), "got 1 parameters, wanted 2"),
        (lambda s: s["param_groups"][0].pop("lr"), r"lacks \['lr'\]"),
        (lambda s: s["param_groups"][0].update(maximize=True), r"\['maximize'\] switched on"),
        (lambda s: s["param_groups"][0].update(lr=-1.0), "lr: got -1.0"),
    ],
)
def test_a_wrong_checkpoint_changes_nothing(damage, text: str) -> None:
    own = ruda_torch.AdamW(parameters())
    train(own, range(2))
    saved = copy.deepcopy(own.state_dict())
    damage(saved)
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(ValueError, match=text):
        own.load_state_dict(saved)
    after = own.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, entry in before["state"].items():
        assert entry["step"] == after["state"][key]["step"]
        assert same_bits(entry["master"], after["state"][key]["master"])


def test_hooks_run_and_pickle_keeps_everything() -> None:
    own = ruda_torch.AdamW(parameters(), fused_step=True, max_grad_norm=1.0)
    train(own, range(2))
    seen: list[str] = []
    own.register_load_state_dict_pre_hook(lambda optimizer, state: seen.append("before"))
    own.register_load_state_dict_post_hook(lambda optimizer: seen.append("after"))
    own.load_state_dict(own.state_dict())
    assert seen == ["before", "after"]
    again = pickle.loads(pickle.dumps(ruda_torch.AdamW(parameters(), fused_step=True)))
    assert again.fused_step
    train(again, range(1))
    assert again.last_grad_norm > 0


@pytest.mark.parametrize("name", ["amsgrad", "maximize", "differentiable", "capturable"])
def test_unbuilt_options_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"\[AdamW\] {name}: got True"):
        ruda_torch.AdamW(parameters(), **{name: True})
    with pytest.raises(NotImplementedError, match=name):
        ruda_torch.AdamW([{"params": parameters(), name: True}])


def test_hierarchical_statistics_and_clipping_without_the_fused_step_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="hierarchical_stats: got True, wanted False"):
        ruda_torch.AdamW(parameters(), fused_step=True, hierarchical_stats=True)
    with pytest.raises(ValueError, match=r"max_grad_norm: got 1.0 with fused_step=False"):
        ruda_torch.AdamW(parameters(), max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"max_grad_norm: got -1.0, wanted a positive number"):
        ruda_torch.AdamW(parameters(), fused_step=True, max_grad_norm=-1.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": -1.0}, "lr: got -1.0"),
        ({"eps": float("nan")}, "eps: got nan"),
        ({"weight_decay": float("inf")}, "weight_decay: got inf"),
        ({"betas": (0.9, 1.0)}, "betas: got"),
    ],
)
def test_wrong_numbers(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ruda_torch.AdamW(parameters(), **options)
    own = ruda_torch.AdamW(parameters())
    with pytest.raises(ValueError, match="loss_scale: got 0"):
        own.step(loss_scale=0.0)


def test_wrong_parameters() -> None:
    good = parameters()
    own = ruda_torch.AdamW(good)
    base = torch.ones(6, 4, device="ruda")
    for bad, error, text in [
        (torch.ones(3, requires_grad=True), TypeError, "got a parameter on cpu"),
        (torch.ones(3, dtype=torch.float64, device="ruda"), TypeError, "got dtype torch.float64"),
        (base[:, ::2].requires_grad_(), ValueError, "without gaps"),
        (torch.ones(1, 4, device="ruda").expand(3, 4).requires_grad_(), ValueError, "without gaps"),
        (good[0].detach()[1:].requires_grad_(), ValueError, "share memory"),
    ]:
        with pytest.raises(error, match=text):
            own.add_param_group({"params": [bad]})
        assert len(own.param_groups) == 1
    with pytest.raises(ValueError, match="non-leaf"):
        ruda_torch.AdamW([good[0] * 2])
    with pytest.raises(ValueError, match="share memory"):
        ruda_torch.AdamW([base[:3].requires_grad_(), base[2:].requires_grad_()])
    own.add_param_group({"params": [base[:3].requires_grad_(), base[3:].requires_grad_()]})


def test_names_are_used_in_errors() -> None:
    with pytest.raises(TypeError, match=r"\[AdamW\] layer.weight: got a parameter on cpu"):
        ruda_torch.AdamW([("layer.weight", torch.ones(2, requires_grad=True))])


@pytest.mark.parametrize("fused_step", [False, True])
def test_a_gradient_with_overlaps_or_gaps_is_named(fused_step: bool) -> None:
    named = [(name, torch.ones(4, 6, device="ruda").requires_grad_()) for name in ("a", "b")]
    for parameters, name in ((named, "b"), ([p for _, p in named], r"param_groups\[0\].*\[1\]")):
        own = ruda_torch.AdamW(parameters, fused_step=fused_step)
        for wrong in (
            torch.ones(1, 6, device="ruda").expand(4, 6),
            torch.ones(4, 12, device="ruda")[:, ::2],
        ):
            named[0][1].grad, named[1][1].grad = torch.ones(4, 6, device="ruda"), wrong
            with pytest.raises(
                ValueError, match=rf"\[AdamW\] gradient of {name}: got strides .*conti"
            ):
                own.step()
            assert named[0][1].eq(1).all() and named[0][1].grad.eq(1).all()
            named[1][1].grad = named[1][1].grad.contiguous()
            own.step()
            with torch.no_grad():
                named[0][1].fill_(1)
    wrong = torch.ones(1, 6, device="ruda").expand(4, 6)
    with pytest.raises(ValueError, match=r"\[gradient_norm\] gradients\[1\]: got strides"):
        torch.ops.ruda.gradient_norm([wrong.contiguous(), wrong], 1.0)
    with pytest.raises(ValueError, match=r"\[unscale_gradients_\] gradients\[0\]: got strides"):
        torch.ops.ruda.unscale_gradients_([wrong], 1.0)


def test_sparse_gradients_are_refused() -> None:
    class Sparse:
        layout = torch.sparse_coo

    from ruda_torch.training.parameters import check_gradient

    class Parameter:
        grad = Sparse()

    with pytest.raises(NotImplementedError, match=r"layout torch.sparse_coo, wanted a dense"):
        check_gradient(Parameter(), "embedding.weight")
