from __future__ import annotations

import math
import threading

import pytest
import torch
import torch.nn.functional as F

from ruda_finetune import DataError, FinetuneError, SFTCollator, TrainingBatches

COLLATE = SFTCollator(pad_token_id=0)


def run_step(kit, device, size, accumulation, rows):
    trainer = kit.make_run(
        device, dropout=0.0, rows=rows, batch_size=size, accumulation=accumulation
    )
    before = kit.weights(trainer)
    result = trainer.train_step(trainer.data.next_window())
    after = kit.weights(trainer)
    return result, {name: after[name] - before[name] for name in before}


def test_splitting_a_window_changes_neither_loss_nor_gradient(kit, device):
    rows = kit.make_rows(4)
    results = [run_step(kit, device, *split, rows) for split in ((4, 1), (2, 2), (1, 4))]
    whole, update = results[0]
    for result, other in results[1:]:
        assert result.loss == pytest.approx(whole.loss, rel=1e-5)
        assert result.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
        assert result.supervised_tokens == whole.supervised_tokens
        assert result.input_tokens == whole.input_tokens == sum(len(r["input_ids"]) for r in rows)
        moved = torch.cat([delta.flatten() for delta in update.values()])
        again = torch.cat([delta.flatten() for delta in other.values()])
        assert (moved - again).norm() <= 1e-2 * moved.norm()  # AdamW's first step is a sign
    assert whole.padded_tokens > results[2][0].padded_tokens == whole.input_tokens


def by_hand(kit, rows):
    """Token losses of each row alone, from full logits: (sum, count)."""
    model = kit.make_model(activation_checkpointing=False).eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
            logits = model.head(model.hidden_states(ids))[0, :-1].double()
            total += float(F.cross_entropy(logits, labels[1:], reduction="sum"))
            count += sum(label != -100 for label in row["labels"][1:])
    return total, count


def test_loss_is_token_weighted_by_hand(kit):
    rows = kit.make_rows(4)
    total, count = by_hand(kit, rows)
    result, _ = run_step(kit, "cpu", 1, 4, rows)
    assert result.supervised_tokens == count
    assert result.loss == pytest.approx(total / count, rel=1e-5)
    means = [by_hand(kit, [row]) for row in rows]
    mean_of_means = sum(loss / number for loss, number in means) / 4
    assert abs(mean_of_means - total / count) > 1e-2 * result.loss  # the rows can tell them apart


def test_short_last_window(kit, device):
    # 10 rows, accumulation 4: windows of 4, 4 and 2 rows
    rows = kit.make_rows(10)
    trainer = kit.make_run(
        device, dropout=0.0, rows=rows, batch_size=1, accumulation=4, scheduler=False
    )
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0  # the weights stay, so that every window can be computed by hand
    for window in range(3):
        chosen = [rows[part[0]] for part in trainer.data.window_rows(0, window)]
        assert len(chosen) == (4, 4, 2)[window]
        total, count = by_hand(kit, chosen)
        result = trainer.train_step(trainer.data.next_window())
        assert result.loss == pytest.approx(total / count, rel=1e-5)
        assert result.supervised_tokens == count
    assert trainer.data.position == 1.0


def test_gradient_norm_is_that_of_the_whole_window(kit):
    rows = kit.make_rows(4)
    result, _ = run_step(kit, "cpu", 1, 4, rows)
    model = kit.make_model(activation_checkpointing=False).train()
    model(**COLLATE(rows), reduction="mean").backward()
    squares = sum(
        float(p.grad.double().square().sum()) for p in model.parameters() if p.requires_grad
    )
    assert result.grad_norm == pytest.approx(math.sqrt(squares), rel=1e-5)


def test_backward_runs_on_the_calling_thread(kit, device):
    trainer = kit.make_run(device)
    threads = set()
    for parameter in trainer._parameters:
        parameter.register_hook(lambda grad: threads.add(threading.get_ident()))
    trainer.train_step(trainer.data.next_window())
    assert threads == {threading.get_ident()}


def test_masked_microbatch_changes_nothing(kit):
    rows = kit.make_rows(4)
    masked = {"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.full((1, 3), -100)}
    trainers = [kit.make_run(dropout=0.0, rows=rows) for _ in range(2)]
    windows = [trainer.data.next_window() for trainer in trainers]
    one = trainers[0].train_step(windows[0])
    two = trainers[1].train_step([masked, *windows[1]])
    assert one.loss == two.loss and one.grad_norm == two.grad_norm
    for name, weight in kit.weights(trainers[0]).items():
        assert torch.equal(weight, kit.weights(trainers[1])[name])


def test_window_without_labels_is_an_error(kit):
    trainer = kit.make_toy()
    masked = {"input_ids": torch.tensor([[3, 4, 5]]), "labels": torch.full((1, 3), -100)}
    only_first = {"input_ids": torch.tensor([[3, 4]]), "labels": torch.tensor([[3, -100]])}
    for window in ([masked], [masked, only_first], []):
        with pytest.raises(DataError, match="step 1: no supervised token"):
            trainer.train_step(window)
    assert trainer.step == 0


def test_gradients_are_cleared_before_and_after(kit):
    twins = [kit.make_toy() for _ in range(2)]
    for parameter in twins[1].model.linear.parameters():
        parameter.grad = torch.ones_like(parameter)  # left over from elsewhere
    for trainer in twins:
        trainer.train_step(trainer.data.next_window())
        assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert torch.equal(twins[0].model.linear.weight, twins[1].model.linear.weight)

    def fail(**batch):
        raise RuntimeError("out of memory")

    twins[0].model.forward = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        twins[0].train_step(twins[0].data.next_window())
    assert all(parameter.grad is None for parameter in twins[0].model.parameters())
    assert twins[0].step == 1


def test_evaluation_is_token_weighted_and_changes_nothing(kit):
    rows = kit.make_rows(5)
    trainer = kit.make_run(dropout=0.5, rows=rows)
    trainer.model.train()
    before = torch.get_rng_state()
    batches = TrainingBatches(rows, COLLATE, 2, 3, shuffle=False).next_window()
    result = trainer.evaluate(batches)
    total, count = by_hand(kit, rows)
    assert result.loss == pytest.approx(total / count, rel=1e-5)
    assert result.supervised_tokens == count and trainer.model.training
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(DataError, match="no supervised token"):
        trainer.evaluate([])


def test_optimizer_must_hold_what_is_trained(kit):
    from ruda_finetune import SFTTrainer

    model = kit.make_model()
    trained = [value for value in model.parameters() if value.requires_grad]
    with pytest.raises(FinetuneError, match="1 trainable parameters are not in the optimiser"):
        SFTTrainer(model, torch.optim.SGD(trained[1:], 0.1), "b", {})
    stale = [*trained, torch.nn.Parameter(torch.zeros(2))]
    with pytest.raises(FinetuneError, match="holds 1 parameters that the model does not train"):
        SFTTrainer(model, torch.optim.SGD(stale, 0.1), "b", {})
    with pytest.raises(FinetuneError, match="no trainable parameter"):
        SFTTrainer(kit.make_toy().model.requires_grad_(False), torch.optim.SGD(stale, 0.1), "b", {})
