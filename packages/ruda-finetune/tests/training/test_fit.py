from __future__ import annotations

import json
import os
import signal
import threading

import pytest
import torch

from ruda_finetune import (
    CheckpointError,
    FinetuneError,
    Interrupted,
    MetricsWriter,
    TrainerCallback,
    claim_run_directory,
    read_metrics,
    read_run,
)
from ruda_finetune.training.progress import seconds_left


@pytest.fixture(autouse=True)
def usual_interrupt():
    """A test run started in the background of a shell inherits an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Recorder(TrainerCallback):
    def __init__(self, act=None):
        self.events = []
        self.results = []
        self.act = act

    def on_fit_start(self, trainer, total_steps):
        self.events.append(("start", trainer.step, total_steps))

    def on_step(self, trainer, result):
        self.events.append(("step", result.step))
        self.results.append(result)
        if self.act:
            self.act(trainer, result)

    def on_save(self, trainer, path):
        self.events.append(("save", trainer.step))

    def on_fit_end(self, trainer, result):
        self.events.append((result.status, result.step))


def test_events_come_in_order(kit, tmp_path):
    recorder = Recorder()
    trainer = kit.make_toy(callbacks=[recorder])
    result = trainer.fit(steps=5, directory=tmp_path / "run", save_every=2)
    assert recorder.events == [
        ("start", 0, 5), ("step", 1), ("step", 2), ("save", 2), ("step", 3), ("step", 4),
        ("save", 4), ("step", 5), ("save", 5), ("finished", 5),
    ]  # fmt: skip
    assert result.status == "finished" and result.checkpoint == tmp_path / "run" / "latest.pt"
    assert result.losses == [step.loss for step in recorder.results]
    assert result.losses[-1] < result.losses[0]
    assert result.input_tokens == sum(step.input_tokens for step in recorder.results)
    for step in recorder.results:
        assert step.seconds > 0 and step.grad_norm > 0 and step.lr == 1e-2 and not step.skipped
        assert step.tokens_per_second == step.input_tokens / step.seconds
        assert step.padded_tokens >= step.input_tokens > step.supervised_tokens > 0


def test_epochs(kit):
    trainer = kit.make_toy()
    assert trainer.fit(epochs=2).step == 6 and trainer.data.position == 2.0
    assert kit.make_toy().fit(epochs=0.5).step == 2
    assert [result.step for result in (trainer.fit(steps=7), trainer.fit(epochs=3))] == [7, 9]


def test_fit_resumes_exactly(kit, tmp_path):
    straight = kit.make_run().fit(steps=8)
    first = kit.make_run()
    first.fit(steps=3, directory=tmp_path)
    second = kit.make_run()
    second.resume(tmp_path)
    result = second.fit(steps=8, directory=tmp_path)
    assert result.losses == straight.losses[3:] and result.step == 8
    again = kit.make_run()
    again.resume(tmp_path)
    assert again.fit(steps=8, directory=tmp_path).losses == []
    with pytest.raises(FinetuneError, match="until step 7, but the run is at step 8"):
        again.fit(steps=7)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_at_the_step_boundary(kit, tmp_path, number):
    straight = kit.make_run().fit(steps=8)

    def interrupt(trainer, result):
        if result.step == 4:
            os.kill(os.getpid(), number)

    recorder = Recorder(interrupt)
    trainer = kit.make_run(callbacks=[recorder])
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"after step 4 of 8; resume from .*latest.pt") as caught:
        trainer.fit(steps=8, directory=tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert caught.value.exit_code == 128 + number
    assert caught.value.result.status == "interrupted" and caught.value.result.step == 4
    assert recorder.events[-3:] == [("step", 4), ("save", 4), ("interrupted", 4)]
    assert json.loads((tmp_path / "progress.json").read_text())["status"] == "interrupted"
    second = kit.make_run()
    second.resume(tmp_path)
    assert second.fit(steps=8, directory=tmp_path).losses == straight.losses[4:]


def test_signal_during_a_step_lets_it_finish(kit, tmp_path):
    trainer = kit.make_toy()
    forward = type(trainer.model).forward

    def interrupted_forward(**batch):
        os.kill(os.getpid(), signal.SIGINT)
        del trainer.model.forward
        return forward(trainer.model, **batch)

    trainer.model.forward = interrupted_forward
    with pytest.raises(Interrupted) as caught:
        trainer.fit(steps=3, directory=tmp_path)
    assert caught.value.exit_code == 130 and trainer.step == 1
    assert kit.make_toy().resume(tmp_path).step == 1


def test_second_signal_ends_at_once(kit, tmp_path):
    def interrupt_twice(trainer, result):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    trainer = kit.make_toy(callbacks=[Recorder(interrupt_twice)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(steps=3, directory=tmp_path)
    assert json.loads((tmp_path / "progress.json").read_text())["status"] == "failed"
    assert not (tmp_path / "latest.pt").exists()


def test_signals_are_left_alone_on_request_and_in_other_threads(kit):
    def interrupt(trainer, result):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        kit.make_toy(callbacks=[Recorder(interrupt)]).fit(steps=2, handle_signals=False)
    results = []
    thread = threading.Thread(target=lambda: results.append(kit.make_toy().fit(steps=2)))
    thread.start()
    thread.join()
    assert results[0].status == "finished"


def test_callback_can_stop(kit, tmp_path):
    recorder = Recorder(lambda trainer, result: result.step == 2 and trainer.request_stop())
    result = kit.make_toy(callbacks=[recorder]).fit(steps=9, directory=tmp_path)
    assert (result.status, result.step) == ("stopped", 2)
    assert kit.make_toy().resume(tmp_path).step == 2


def test_directory_of_another_run_is_refused(kit, tmp_path):
    home = tmp_path / "demo"
    kit.make_toy().fit(steps=2, directory=home)
    files = {path.name: path.read_bytes() for path in home.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        kit.make_toy().fit(steps=3, directory=home)
    for words in (str(home), "already holds a run", "2 of 2 steps", "latest.pt", "resume"):
        assert words in str(caught.value)
    assert {path.name: path.read_bytes() for path in home.iterdir()} == files
    other = kit.make_toy()
    other.resume(home)
    with pytest.raises(CheckpointError, match="already holds a run"):
        kit.make_toy().fit(steps=1, directory=home)
    other.fit(steps=3, directory=home)
    # a resumed run may go on elsewhere, but not in a directory with a third run
    kit.make_toy().fit(steps=1, directory=tmp_path / "third")
    with pytest.raises(CheckpointError, match="third already holds a run"):
        other.fit(steps=4, directory=tmp_path / "third")
    other.fit(steps=4, directory=tmp_path / "fresh")


def test_claiming_a_directory(tmp_path):
    home = tmp_path / "run"
    home.mkdir()
    (home / "notes.txt").write_text("mine")
    claim_run_directory(home, "base", {"seed": 1, "lora": {"rank": 4}})
    run = read_run(home)
    assert run["base_id"] == "base" and run["run_config"] == {"seed": 1, "lora": {"rank": 4}}
    claim_run_directory(home, "base", {"seed": 1, "lora": {"rank": 4}}, resuming=True)
    with pytest.raises(CheckpointError) as caught:
        claim_run_directory(home, "other", {"seed": 2, "lora": {"rank": 4}}, resuming=True)
    assert "base_id: checkpoint 'base', this run 'other'" in str(caught.value)
    assert "seed: checkpoint 1, this run 2" in str(caught.value) and "rank" not in str(caught.value)
    with pytest.raises(CheckpointError, match="is a file"):
        claim_run_directory(home / "notes.txt", "base", {})
    assert read_run(tmp_path) is None


def test_progress_file(kit, tmp_path):
    seen = []

    def look(trainer, result):
        if (tmp_path / "progress.json").exists():
            seen.append(json.loads((tmp_path / "progress.json").read_text()))

    trainer = kit.make_toy(callbacks=[Recorder(look)])
    trainer.fit(steps=4, directory=tmp_path)
    assert [entry["step"] for entry in seen] == [1, 2, 3]
    assert all(entry["status"] == "running" and entry["eta_seconds"] > 0 for entry in seen)
    last = json.loads((tmp_path / "progress.json").read_text())
    assert (last["status"], last["step"], last["eta_seconds"]) == ("finished", 4, 0.0)
    assert last["loss"] == trainer.last.loss and last["input_tokens"] > 0
    assert last["elapsed_seconds"] == pytest.approx(trainer.counters.seconds)
    path = trainer.write_progress(tmp_path / "other.json", 10)
    assert json.loads(path.read_text())["total_steps"] == 10


def test_progress_on_a_full_disk_does_not_end_the_run(kit, tmp_path):
    (tmp_path / "progress.json.part").symlink_to("/dev/full")
    with pytest.warns(UserWarning, match="cannot write progress.json.*No space left") as caught:
        result = kit.make_toy().fit(steps=3, directory=tmp_path)
    assert result.status == "finished" and (tmp_path / "latest.pt").exists()
    assert len([entry for entry in caught if "progress.json" in str(entry.message)]) == 1


def test_time_left():
    assert seconds_left([], 3) is None and seconds_left([1.0], 0) == 0.0
    assert seconds_left([9.0], 3) == 27.0
    assert seconds_left([9.0, 1.0, 2.0, 3.0], 10) == 20.0  # the first step is slow everywhere
    assert seconds_left([50.0] * 10 + [1.0] * 20, 5) == 5.0


def test_metrics_survive_a_resume(kit, tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = kit.make_toy(callbacks=[MetricsWriter(path)])
    first.fit(steps=2, directory=tmp_path / "run")
    first.fit(steps=4)  # beyond the checkpoint
    path.open("a").write('{"step": 5, "lo')  # killed while writing
    second = kit.make_toy(callbacks=[MetricsWriter(path)])
    second.resume(tmp_path / "run")
    second.fit(steps=5)
    lines = read_metrics(path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert {"loss", "grad_norm", "lr", "tokens_per_second", "seconds"} <= lines[0].keys()
    kit.make_toy(callbacks=[MetricsWriter(path)]).fit(steps=1)
    assert len(read_metrics(path)) == 1


def test_failed_save_ends_the_run_with_its_reason(kit, tmp_path):
    kit.make_toy().fit(steps=1, directory=tmp_path)
    (tmp_path / "next.pt").symlink_to("/dev/full")
    trainer = kit.make_toy()
    trainer.resume(tmp_path)
    with pytest.raises(CheckpointError, match="No space left"):
        trainer.fit(steps=2, directory=tmp_path)
    assert json.loads((tmp_path / "progress.json").read_text())["status"] == "failed"
    assert kit.make_toy().resume(tmp_path).step == 1


def test_bad_arguments(kit, tmp_path):
    trainer = kit.make_toy()
    for options in ({}, {"steps": 1, "epochs": 1}):
        with pytest.raises(FinetuneError, match="one of steps and epochs"):
            trainer.fit(**options)
    with pytest.raises(FinetuneError, match="save_every"):
        trainer.fit(steps=1, save_every=1)
    with pytest.raises(FinetuneError, match="until step 0"):
        trainer.fit(steps=0)
    trainer.data = None
    with pytest.raises(FinetuneError, match="no data"):
        trainer.fit(steps=1)
    with pytest.raises(FinetuneError, match="JSON values"):
        from ruda_finetune import SFTTrainer

        SFTTrainer(trainer.model, trainer.optimizer, "b", {"path": tmp_path})


def test_training_learns(kit, device):
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in kit.make_rows(4)]
    trainer = kit.make_run(
        device, rows=rows, rank=8, dropout=0.0, total=30, batch_size=4, accumulation=1
    )
    result = trainer.fit(steps=30)
    assert result.losses[-1] < 0.9 * result.losses[0] < 0.9 * 4.2  # log 61 = 4.1
    assert torch.isfinite(torch.tensor(result.losses)).all()
