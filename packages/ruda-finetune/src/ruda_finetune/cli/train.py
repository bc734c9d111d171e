"""`ruda-finetune train`: load, show, train, answer held-out records, write adapter and report."""

from __future__ import annotations

import json
import platform
import resource
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ruda_finetune._files import replace_files
from ruda_finetune.cli.console import TrainingDisplay, answering, duration
from ruda_finetune.cli.samples import Answers, Question, answer_all, questions
from ruda_finetune.cli.session import (
    Loaded,
    chat_template,
    check_positions,
    check_rank,
    device_target,
    dtype_reason,
    key_values,
    marked_template,
    open_model,
    show_warnings,
    vocabulary_size,
)
from ruda_finetune.cli.settings import SettingsError, TrainSettings
from ruda_finetune.data import RecordFile, SFTCollator, SFTDataset, TrainingBatches, read_records
from ruda_finetune.errors import CheckpointError
from ruda_finetune.lora import inject_lora, save_adapter
from ruda_finetune.report import ReportData, Sample, write_report
from ruda_finetune.targets import TargetReport
from ruda_finetune.training import (
    CausalLMFinetuner,
    DamagedCheckpointError,
    Interrupted,
    LRSchedule,
    MetricsWriter,
    ResumeReport,
    SFTTrainer,
    check_run_directory,
    locked_run_directory,
    read_metrics,
)

SETTINGS_FILE = "settings.json"
BEFORE_FILE = "answers_before.json"
# Settings that decide what is computed: a resumed run must have the same.
COMPUTING = (
    "template", "steps", "epochs", "batch_size", "accumulate", "learning_rate", "schedule",
    "warmup_steps", "weight_decay", "max_grad_norm", "seed", "rank", "alpha", "dropout", "targets",
    "quantize", "block_size", "dtype", "checkpointing", "max_length", "truncate", "train_on_prompt",
)  # fmt: skip


def train(settings: TrainSettings, resume: bool) -> None:
    """Run the whole command; raises `FinetuneError` for anything the user can mend."""
    console = Console(highlight=False)
    show_warnings(console)
    check_run_directory(settings.output, resume)
    records = read_records(settings.data)
    asked = held_out(settings)
    check_warmup(settings, len(records))

    def inspect(model: Any) -> None:
        check_rank(model, settings.target_modules(), settings.rank)
        if asked:
            check_positions(model, "max-new-tokens", settings.max_new_tokens)

    loaded = open_model(
        settings.model, settings.quantize, settings.dtype, settings.device,
        settings.target_modules(), settings.block_size, settings.cache, inspect=inspect,
    )  # fmt: skip
    if settings.train_on_prompt:
        template = chat_template(settings.template, loaded.tokenizer)
    else:
        template = marked_template(
            settings.template, loaded.tokenizer, ", or --train-on-prompt to learn everything"
        )
    dataset = SFTDataset(
        records,
        SFTCollator(
            loaded.tokenizer,
            max_length=settings.max_length,
            train_on_prompt=settings.train_on_prompt,
            truncate=settings.truncate,
            chat_template=template,
            vocabulary_size=vocabulary_size(loaded.model),
        ),
    )
    torch.manual_seed(settings.seed)
    targets = inject_lora(
        loaded.model,
        settings.target_modules(),
        rank=settings.rank,
        alpha=settings.alpha,
        dropout=settings.dropout,
    )
    describe(console, settings, loaded, targets, dataset)
    display = TrainingDisplay(console)
    trainer, total = build_trainer(settings, loaded, dataset, records, display)
    with locked_run_directory(settings.output), writing_into(settings.output):
        try:
            train_and_report(
                console, settings, loaded, targets, dataset, trainer, total, asked, template,
                display, resume,
            )  # fmt: skip
        except KeyboardInterrupt:  # between training's steps it is `Interrupted`
            tell_how_to_go_on(console, settings)
            raise


def check_warmup(settings: TrainSettings, rows: int) -> None:
    """Before the load: rows that are dropped later can only make the run shorter."""
    if settings.steps is None:
        per_epoch = -(-rows // (settings.batch_size * settings.accumulate))
        try:
            settings.check_warmup(total_steps(settings, per_epoch))
        except ValueError as error:
            raise SettingsError(f"[train] {error}") from None


def total_steps(settings: TrainSettings, per_epoch: int) -> int:
    """The run's steps, for data that has `per_epoch` of them."""
    if settings.steps is not None:
        return settings.steps
    return max(1, round((settings.epochs or 1.0) * per_epoch))


@contextmanager
def writing_into(output: Path) -> Iterator[None]:
    """Files that cannot be written are errors that say that the run is not lost."""
    try:
        yield
    except BrokenPipeError:  # whoever read the output has gone
        raise
    except OSError as error:
        place = output if error.filename is None else error.filename
        raise CheckpointError(
            f"[train] cannot write {place}: {error.strerror or error}; make room or mend it, then "
            "go on with the run by --resume"
        ) from error


def train_and_report(
    console: Console,
    settings: TrainSettings,
    loaded: Loaded,
    targets: TargetReport,
    dataset: SFTDataset,
    trainer: SFTTrainer,
    total: int,
    asked: list[Question],
    template: str | None,
    display: TrainingDisplay,
    resume: bool,
) -> None:
    """The part that writes into the run's folder."""
    if resume:
        found = resume_run(trainer, settings.output)
        if found.path is not None:
            console.print(
                f"resumed from {found.path} at step {found.step} of {total}", markup=False
            )
    trainer.claim(settings.output)
    settings.save(settings.output / SETTINGS_FILE)
    before = answers_before(console, settings, loaded, asked, template, resume, trainer.step)
    try:
        result = trainer.fit(steps=total, directory=settings.output, save_every=settings.save_every)
    except Interrupted as stop:
        display.close()
        console.print(str(stop), markup=False)
        tell_how_to_go_on(console, settings)
        raise SystemExit(stop.exit_code) from None
    finally:
        display.close()
    adapter = settings.output / "adapter"
    save_adapter(loaded.model, adapter, base_model_name_or_path=str(settings.model))
    after = ask(console, "after training", settings, loaded, asked, template)
    summary = write_outcome(
        settings, loaded, targets, dataset, trainer, asked, before, after, total
    )
    loss = f"{result.losses[-1]:.4f}" if result.losses else "unchanged"
    console.print(
        f"\ntrained {trainer.step} steps in {duration(trainer.counters.seconds)}, last loss {loss}"
    )
    if asked:
        console.print(
            f"exact answers: {before.exact(asked)} of {len(asked)} before, "
            f"{after.exact(asked)} of {len(asked)} after"
        )
    console.print(f"adapter: {adapter}\nreport:  {summary}", markup=False, soft_wrap=True)


def tell_how_to_go_on(console: Console, settings: TrainSettings) -> None:
    path = settings.output / SETTINGS_FILE
    if path.exists():
        console.print(
            f"go on with: ruda-finetune train --config {shlex.quote(str(path))} --resume",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def resume_run(trainer: SFTTrainer, output: Path) -> ResumeReport:
    """`SFTTrainer.resume`; where no checkpoint is whole, say what is left of the run."""
    try:
        return trainer.resume(output)
    except DamagedCheckpointError as error:
        adapter = output / "adapter"
        if not (adapter / "adapter_model.safetensors").is_file():
            raise
        raise DamagedCheckpointError(
            f"{error}; the adapter that the run saved is in {adapter}"
        ) from error


def held_out(settings: TrainSettings) -> list[Question]:
    if settings.test_data is None or settings.samples == 0:
        return []
    file = read_records(settings.test_data)
    return questions(file, file.where, settings.samples)


def build_trainer(
    settings: TrainSettings,
    loaded: Loaded,
    dataset: SFTDataset,
    records: RecordFile,
    display: TrainingDisplay,
) -> tuple[SFTTrainer, int]:
    """The trainer and the number of its steps."""
    finetuner = CausalLMFinetuner.from_model(
        loaded.model, activation_checkpointing=settings.checkpointing
    )
    parameters = [value for value in loaded.model.parameters() if value.requires_grad]
    optimizer = make_optimizer(settings, parameters)
    batches = TrainingBatches(
        dataset, dataset.collator, settings.batch_size, settings.accumulate, settings.seed
    )
    total = total_steps(settings, batches.steps_per_epoch)
    values = settings.model_dump(mode="json")
    trainer = SFTTrainer(
        finetuner,
        optimizer,
        base_id=loaded.source.source.sha256,
        run_config={
            **{name: values[name] for name in COMPUTING},
            "data_sha256": records.sha256,
            "total_steps": total,
        },
        scheduler=LRSchedule(optimizer, settings.schedule, total, settings.warmup_steps),
        max_grad_norm=settings.max_grad_norm,
        data=batches,
        callbacks=[MetricsWriter(settings.output / "metrics.jsonl"), display],
    )
    return trainer, total


def make_optimizer(settings: TrainSettings, parameters: list[Any]) -> torch.optim.Optimizer:
    """ruda's AdamW on ruda, torch's elsewhere."""
    options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if parameters[0].device.type == "ruda":
        import ruda_torch

        return ruda_torch.AdamW(
            parameters, fused_step=True, max_grad_norm=settings.max_grad_norm, **options
        )
    return torch.optim.AdamW(parameters, **options)


def describe(
    console: Console,
    settings: TrainSettings,
    loaded: Loaded,
    targets: TargetReport,
    dataset: SFTDataset,
) -> None:
    """What is going to happen, before it does."""
    name, target = device_target(loaded.source.device)
    console.print(key_values("", setup_facts(settings, loaded, targets, dataset)))
    if not loaded.fusion.is_fused:
        console.print(
            "this architecture runs unfused: its attention, MLP and norm modules are used as they "
            f"are ({loaded.fusion.lines()[0]})",
            style="yellow", markup=False,
        )  # fmt: skip
    if target == "host":
        console.print(f"training on the CPU through {settings.device} ({name})", markup=False)


def setup_facts(
    settings: TrainSettings, loaded: Loaded, targets: TargetReport, dataset: SFTDataset
) -> dict[str, str]:
    name, target = device_target(loaded.source.device)
    parameters = list(loaded.model.parameters())
    trained = sum(value.numel() for value in parameters if value.requires_grad)
    weights = f"NF4 in blocks of {settings.block_size}" if settings.quantize == "nf4" else "dense"
    elements = ", ".join(f"{n:,} {kind}" for kind, n in loaded.source.report.elements.items())
    return {
        "model": f"{loaded.source.source.name} ({loaded.source.source.architecture})",
        "device": f"{settings.device} ({name}), target {target}",
        "weights": f"{weights}: {elements}",
        "compute": dtype_reason(settings.dtype, loaded.source.dtype, target),
        "adapters": f"float32: small updates would be lost in half precision; rank {settings.rank},"
        f" alpha {settings.alpha:g}",
        "targets": str(targets),
        "parameters": f"{trained:,} trained, {loaded.source.report.parameters:,} frozen",
        "fusion": loaded.fusion.lines()[0],
        "data": str(dataset.report),
    }


def ask(
    console: Console,
    label: str,
    settings: TrainSettings,
    loaded: Loaded,
    asked: list[Question],
    template: str | None,
) -> Answers:
    if not asked:
        return Answers([], 0.0)
    with answering(console, label, len(asked)) as progress:
        answers = answer_all(
            loaded, asked, template, settings.max_new_tokens, max(1, len(asked)), progress
        )
    console.print(
        f"{label}: {answers.exact(asked)} of {len(asked)} exact in {duration(answers.seconds)}"
    )
    return answers


def answers_before(
    console: Console,
    settings: TrainSettings,
    loaded: Loaded,
    asked: list[Question],
    template: str | None,
    resume: bool,
    step: int,
) -> Answers:
    """Ask before training; a resumed run reads what it was told then."""
    found = read_answers(settings.output / BEFORE_FILE) if resume else None
    if found is not None and len(found.texts) == len(asked):
        return found
    if step:
        return Answers(["(not asked before this run was interrupted)"] * len(asked), 0.0)
    answers = ask(console, "before training", settings, loaded, asked, template)
    if asked:
        replace_files(settings.output, {BEFORE_FILE: json.dumps(asdict(answers)).encode()})
    return answers


def read_answers(path: Path) -> Answers | None:
    """What `answers_before` wrote; None where there is nothing, or nothing whole."""
    try:
        return Answers(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_outcome(
    settings: TrainSettings,
    loaded: Loaded,
    targets: TargetReport,
    dataset: SFTDataset,
    trainer: SFTTrainer,
    asked: list[Question],
    before: Answers,
    after: Answers,
    total: int,
) -> Path:
    """report.html, loss.png and summary.json."""
    metrics = read_metrics(settings.output / "metrics.jsonl")
    counters = trainer.counters
    samples = [
        Sample(question.prompt, question.expected, old, new)
        for question, old, new in zip(asked, before.texts, after.texts)
    ]
    speed = counters.input_tokens / counters.seconds if counters.seconds else 0.0
    memory = memory_facts(loaded.source.device)
    summary = {
        "steps": trainer.step,
        "seconds": counters.seconds,
        "tokens_per_second": speed,
        "input_tokens": counters.input_tokens,
        "supervised_tokens": counters.supervised_tokens,
        "first_loss": metrics[0]["loss"] if metrics else None,
        "last_loss": metrics[-1]["loss"] if metrics else None,
        "samples": len(asked),
        "exact_before": before.exact(asked),
        "exact_after": after.exact(asked),
        "answer_seconds": [before.seconds, after.seconds],
        "memory_bytes": memory,
    }
    text = json.dumps(summary, indent=1) + "\n"
    (settings.output / "summary.json").write_text(text, encoding="utf-8")
    facts = {
        **setup_facts(settings, loaded, targets, dataset),
        "training": f"{trainer.step} steps in {duration(counters.seconds)}",
        "throughput": f"{speed:.0f} tokens/s ({counters.input_tokens:,} tokens, "
        f"{counters.supervised_tokens:,} of them learned)",
        **{f"memory, {key}": f"{value / 2**20:,.0f} MiB" for key, value in memory.items()},
    }
    if asked:
        facts["answering"] = (
            f"{duration(before.seconds)} before, {duration(after.seconds)} after, "
            f"{len(asked)} records"
        )
    headline = f"{trainer.step} steps, {duration(counters.seconds)}"
    if asked:
        headline += f"; exact answers {before.exact(asked)} → {after.exact(asked)} of {len(asked)}"
    return write_report(
        settings.output,
        ReportData(
            title=f"{settings.model.stem} on {settings.data.name}",
            headline=headline,
            metrics=metrics,
            facts=facts,
            settings={
                key: str(value)
                for key, value in settings.model_dump(mode="json").items()
                if value is not None
            },
            environment=environment(),
            samples=samples,
        ),
    )


def memory_facts(device: torch.device) -> dict[str, int]:
    """Peak bytes of the device's pool and of the process."""
    facts = {"process peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device.type == "ruda":
        facts["device peak"] = int(torch.accelerator.max_memory_allocated())
    return facts


def environment() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "transformers", "ruda-runtime", "ruda-blas", "ruda-dnn", "ruda-torch",
                 "ruda-finetune"):  # fmt: skip
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            module = __import__(name.replace("-", "_"))
            found[name] = f"{getattr(module, '__version__', '?')} (from source)"
    return found
