from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ruda_finetune import CheckpointError, SFTCollator, SFTTrainer, read_checkpoint
from ruda_finetune.training import ResumeWarning


def scramble():
    """What another process would have: other random states everywhere."""
    torch.manual_seed(999)
    random.seed(999)
    np.random.seed(999)


def train(trainer, steps):
    return [trainer.train_step(trainer.data.next_window()) for _ in range(steps)]


def same_run(kit, device, tmp_path, stop, **options):
    straight = kit.make_run(device, **options)
    expected = train(straight, 8)
    first = kit.make_run(device, **options)
    train(first, stop)
    first.save(tmp_path)
    scramble()
    second = kit.make_run(device, **options)
    scramble()
    report = second.resume(tmp_path)
    assert report.step == second.step == stop and report.messages == []
    rest = train(second, 8 - stop)
    for field in ("step", "loss", "grad_norm", "lr", "supervised_tokens", "epoch"):
        assert [getattr(r, field) for r in rest] == [getattr(r, field) for r in expected[stop:]], (
            field
        )
    for name, weight in kit.weights(straight).items():
        assert torch.equal(weight, kit.weights(second)[name]), name
    return expected


@pytest.mark.parametrize("stop", [1, 4])
def test_resumed_run_is_bit_equal(kit, device, tmp_path, stop):
    # dropout 0.2, batch 2, accumulation 2, 3 steps an epoch: both stops are inside one
    results = same_run(kit, device, tmp_path, stop)
    assert results[stop - 1].epoch % 1 != 0
    assert len({result.loss for result in results}) == 8


def test_unfused_optimizer_of_ruda_is_bit_equal_too(kit, tmp_path):
    import ruda_torch  # noqa: F401 - registers the device

    results = same_run(kit, "ruda:0", tmp_path, 4, fused=False)
    fused = train(kit.make_run("ruda:0"), 8)
    for one, other in zip(results, fused):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-3)
    with pytest.raises(
        CheckpointError, match=r"optimizer.fused_step: checkpoint False, this run T"
    ):
        kit.make_run("ruda:0").resume(tmp_path)


def test_dropout_makes_the_random_state_matter(kit, tmp_path):
    # shows that the test above can fail: the same weights and rows, another random state
    first = kit.make_run()
    train(first, 4)
    first.save(tmp_path)
    losses = []
    for seed in (1, 2):
        second = kit.make_run()
        second.resume(tmp_path)
        torch.manual_seed(seed)
        losses.append(train(second, 1)[0].loss)
    assert losses[0] != losses[1]


class Augmented(list):
    """Rows that change with every look: Python, NumPy and torch random numbers are drawn."""

    def __getitem__(self, index):
        row = super().__getitem__(index)
        ids = list(row["input_ids"])
        ids[0] = 3 + random.randrange(20) + int(np.random.randint(20)) + int(torch.randint(9, (1,)))
        return {**row, "input_ids": ids}


def test_data_that_draws_random_numbers_is_bit_equal(kit, tmp_path):
    random.seed(1)
    np.random.seed(1)
    rows = Augmented(kit.make_rows())

    def fresh():
        trainer = kit.make_run(rows=rows)
        random.seed(1)
        np.random.seed(1)
        return trainer

    expected = [result.loss for result in train(fresh(), 8)]
    first = fresh()
    assert [result.loss for result in train(first, 3)] == expected[:3]
    first.save(tmp_path)
    second = fresh()
    scramble()
    second.resume(tmp_path)
    assert [result.loss for result in train(second, 5)] == expected[3:]
    scramble()
    assert [result.loss for result in train(second, 1)] != expected[:1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 4}, "seed: checkpoint 3, this run 4"),
        ({"rank": 8}, "lora.rank: checkpoint 4, this run 8"),
        ({"dropout": 0.1}, "lora.dropout: checkpoint 0.2, this run 0.1"),
        ({"base_id": "other"}, "base_id: checkpoint 'base', this run 'other'"),
        ({"batch_size": 1}, "data.batch_size: checkpoint 2, this run 1"),
        ({"accumulation": 1}, "data.accumulation: checkpoint 2, this run 1"),
        ({"weight_decay": 0.1}, "optimizer.group 0.weight_decay: checkpoint 0.01, this run 0.1"),
        ({"max_grad_norm": 2.0}, "max_grad_norm: checkpoint 1.0, this run 2.0"),
        ({"total": 9}, "total_steps differs: checkpoint 8, this run 9"),
        ({"scheduler": False}, "the checkpoint has a scheduler but this run has none"),
    ],
)
def test_another_run_is_refused_with_the_field_named(kit, tmp_path, change, field):
    first = kit.make_run()
    train(first, 1)
    first.save(tmp_path)
    other = kit.make_run(**change)
    before, state = kit.weights(other), torch.get_rng_state()
    with pytest.raises(CheckpointError) as caught:
        other.resume(tmp_path)
    assert field in str(caught.value)
    assert (
        other.step == 0 and other.data.position == 0 and torch.equal(state, torch.get_rng_state())
    )
    assert all(torch.equal(weight, before[name]) for name, weight in kit.weights(other).items())


def test_another_data_file_is_refused(kit, tmp_path):
    from ruda_finetune import SFTDataset

    collator = SFTCollator(pad_token_id=0)

    def run(seed):
        return kit.make_run(rows=SFTDataset(kit.make_rows(seed=seed), collator), collator=collator)

    first = run(0)
    train(first, 1)
    first.save(tmp_path)
    run(0).resume(tmp_path)
    with pytest.raises(CheckpointError, match=r"data.fingerprint: checkpoint '.*, this run '"):
        run(1).resume(tmp_path)


def test_rank_is_named_even_when_the_configuration_is_silent(kit, tmp_path):
    from ruda_finetune import finetune_state_dict, load_finetune_state_dict

    four, eight = kit.make_run(rank=4), kit.make_run(rank=8)
    state = finetune_state_dict(four.model, four.optimizer)
    with pytest.raises(CheckpointError, match=r"lora_.*\(rank 4 there, 8 here\)"):
        load_finetune_state_dict(state, eight.model, eight.optimizer)


def test_tensors_must_match_by_name(kit):
    from ruda_finetune import finetune_state_dict, load_finetune_state_dict

    trainer = kit.make_run()
    state = finetune_state_dict(trainer.model, trainer.optimizer)
    name = next(iter(state["model"]))
    state["model"]["_orig_mod." + name] = state["model"].pop(name)
    with pytest.raises(CheckpointError) as caught:
        load_finetune_state_dict(state, trainer.model, trainer.optimizer)
    assert name in str(caught.value) and f"_orig_mod.{name}" in str(caught.value)


def test_only_adapters_are_stored(kit, tmp_path):
    trainer = kit.make_run()
    train(trainer, 1)
    state = read_checkpoint(trainer.save(tmp_path))
    assert state["model"] and all("lora_" in name for name in state["model"])
    assert all(tensor.device.type == "cpu" for tensor in state["model"].values())
    base = sum(p.numel() for p in trainer.model.parameters() if not p.requires_grad)
    stored = sum(tensor.numel() for tensor in state["model"].values())
    assert stored == sum(p.numel() for p in trainer.model.parameters()) - base


def test_pending_gradients_are_not_saved(kit, tmp_path):
    trainer = kit.make_run()
    trainer.model(**trainer.data.next_window()[0], reduction="sum").backward()
    with pytest.raises(CheckpointError, match="gradients are not cleared"):
        trainer.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_loss_scaler_is_restored(kit, tmp_path):
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2) for _ in range(2)]
    first = kit.make_run(scaler=scalers[0])
    train(first, 3)
    assert scalers[0].get_scale() == 128.0
    first.save(tmp_path)
    second = kit.make_run(scaler=scalers[1])
    second.resume(tmp_path)
    assert scalers[1].state_dict() == scalers[0].state_dict()
    with pytest.raises(CheckpointError, match="the checkpoint has a scaler but this run has none"):
        kit.make_run().resume(tmp_path)


def test_checkpoint_of_another_device_says_what_is_lost(kit, tmp_path):
    import ruda_torch  # noqa: F401 - registers the device

    def run(device):
        model = kit.make_model(device, dropout=0.2)
        trained = [value for value in model.parameters() if value.requires_grad]
        optimizer = torch.optim.SGD(trained, 0.1)
        data = kit.make_run().data
        return SFTTrainer(model, optimizer, "base", {}, data=data)

    first = run("cpu")
    train(first, 2)
    first.save(tmp_path)
    other = run("ruda:0")
    with pytest.warns(ResumeWarning, match="not restored: the random state of device ruda"):
        report = other.resume(tmp_path)
    assert report.step == 2 and len(report.messages) == 1
    for name, weight in kit.weights(first).items():
        assert torch.equal(weight, kit.weights(other)[name])
    assert train(other, 1)[0].step == 3
