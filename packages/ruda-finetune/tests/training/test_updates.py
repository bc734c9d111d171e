from __future__ import annotations

import math

import pytest
import torch

from ruda_finetune import FinetuneError, LRSchedule, SFTTrainer


def toy_trainer(kit, **options):
    trainer = kit.make_toy()
    model, data = trainer.model, trainer.data
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    schedule = LRSchedule(optimizer, "linear", 10)
    return SFTTrainer(model, optimizer, "toy", {}, scheduler=schedule, data=data, **options)


def poison(trainer, value):
    """Make the next loss `value`, whatever the batch."""
    forward = type(trainer.model).forward
    trainer.model.forward = lambda **batch: forward(trainer.model, **batch) * value


def test_clipping_bounds_the_update(kit):
    free, clipped = toy_trainer(kit), toy_trainer(kit, max_grad_norm=0.01)
    before = kit.weights(free)
    window = free.data.next_window()
    results = [trainer.train_step(window) for trainer in (free, clipped)]
    assert results[0].grad_norm == results[1].grad_norm > 0.01  # reported before clipping
    moved = [
        math.sqrt(sum(float((kit.weights(t)[n] - before[n]).square().sum()) for n in before))
        for t in (free, clipped)
    ]
    assert moved[0] == pytest.approx(0.5 * results[0].grad_norm, rel=1e-4)
    assert moved[1] == pytest.approx(0.5 * 0.01, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_gradients_skip_the_step_and_the_schedule(kit, value):
    trainer = toy_trainer(kit, max_grad_norm=1.0)
    trainer.train_step(trainer.data.next_window())
    before, rate = kit.weights(trainer), trainer.scheduler.get_last_lr()
    poison(trainer, value)
    result = trainer.train_step(trainer.data.next_window())
    assert result.skipped and not math.isfinite(result.grad_norm)
    assert trainer.scheduler.get_last_lr() == rate and trainer.scheduler.steps == 1
    assert all(torch.equal(weight, before[name]) for name, weight in kit.weights(trainer).items())
    assert (trainer.counters.step, trainer.counters.updates) == (2, 1)
    del trainer.model.forward
    assert not trainer.train_step(trainer.data.next_window()).skipped
    assert trainer.scheduler.steps == 2


def test_too_many_skipped_steps_end_the_run(kit):
    trainer = toy_trainer(kit, max_skipped_steps=3)
    poison(trainer, float("nan"))
    for _ in range(2):
        trainer.train_step(trainer.data.next_window())
    with pytest.raises(FinetuneError, match="3 steps in a row were not finite"):
        trainer.train_step(trainer.data.next_window())


def test_torch_scaler_unscales_before_clipping_and_skips(kit):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain, scaled = (
        toy_trainer(kit, max_grad_norm=0.1),
        toy_trainer(kit, max_grad_norm=0.1, scaler=scaler),
    )
    window = plain.data.next_window()
    results = [trainer.train_step(window) for trainer in (plain, scaled)]
    assert results[0].grad_norm == pytest.approx(results[1].grad_norm, rel=1e-6)
    for name, weight in kit.weights(plain).items():
        torch.testing.assert_close(weight, kit.weights(scaled)[name])
    before = kit.weights(scaled)
    poison(scaled, float("inf"))
    result = scaled.train_step(window)
    assert result.skipped and scaler.get_scale() == 512.0 and scaled.scheduler.steps == 1
    assert all(torch.equal(weight, before[name]) for name, weight in kit.weights(scaled).items())


class SelfClipping(torch.optim.SGD):
    """What the trainer needs of an optimiser that measures and clips in its own step."""

    fused_step = True
    last_step_skipped = False

    def __init__(self, parameters, lr, max_grad_norm=None):
        super().__init__(parameters, lr)
        self.max_grad_norm = max_grad_norm
        self.last_grad_norm = 0.0

    def step(self, closure=None):
        self.last_grad_norm = 7.0
        self.last_step_skipped = True


def test_an_optimizer_that_clips_itself_is_believed(kit):
    model = kit.make_toy().model
    trained = [p for p in model.parameters() if p.requires_grad]
    trainer = SFTTrainer(model, SelfClipping(trained, 0.1, 2.0), "b", {}, max_grad_norm=2.0)
    result = trainer.train_step(kit.make_toy().data.next_window())
    assert result.grad_norm == 7.0 and result.skipped and trainer.max_grad_norm == 2.0
    assert SFTTrainer(model, SelfClipping(trained, 0.1, 2.0), "b", {}).max_grad_norm == 2.0
    with pytest.raises(FinetuneError, match=r"max_grad_norm is 1.0, but the optimiser.*=2.0"):
        SFTTrainer(model, SelfClipping(trained, 0.1, 2.0), "b", {}, max_grad_norm=1.0)


def test_ruda_adamw_clips_in_its_own_step(kit):
    import ruda_torch  # noqa: F401 - registers the device

    options = {"dropout": 0.0, "max_grad_norm": 0.1}
    fused, unfused = (kit.make_run("ruda:0", fused=value, **options) for value in (True, False))
    assert fused._update.fused and not unfused._update.fused
    results = [trainer.train_step(trainer.data.next_window()) for trainer in (fused, unfused)]
    assert results[0].grad_norm == pytest.approx(results[1].grad_norm, rel=1e-5)
    assert fused.optimizer.last_clip_coef == pytest.approx(0.1 / results[0].grad_norm, rel=1e-4)
    for trainer in (fused, unfused):
        before = kit.weights(trainer)
        model = trainer.model
        model.forward = lambda model=model, **batch: type(model).forward(model, **batch) / 0
        result = trainer.train_step(trainer.data.next_window())
        assert result.skipped and trainer.scheduler.steps == 1
        after = kit.weights(trainer)
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_scaler_that_cannot_unscale_needs_fused_clipping(kit):
    class Scaler:
        def get_scale(self):
            return 1.0

    with pytest.raises(
        FinetuneError, match=r"does not unscale.*fused_step=True, max_grad_norm=1.0"
    ):
        toy_trainer(kit, scaler=Scaler(), max_grad_norm=1.0)
    with pytest.raises(FinetuneError, match="must be positive, got 0"):
        toy_trainer(kit, max_grad_norm=0)
