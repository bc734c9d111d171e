"""Options and exit codes; the work is in train.py, evaluate.py and answer.py."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markup import escape

from ruda_finetune._version import __version__
from ruda_finetune.cli.settings import LARGEST_RANK, LARGEST_SEED, MOST, make_settings
from ruda_finetune.errors import FinetuneError, ModelFileError

errors = Console(stderr=True, soft_wrap=True)


class Commands(typer.core.TyperGroup):
    """Says that Ctrl-C was heard; typer would leave without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            errors.print("interrupted")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    help="Fine-tune causal language models with NF4 and LoRA on the device ruda:0.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ruda-finetune {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


Model = Annotated[Path | None, typer.Option(help="A .gguf file or a Hugging Face model directory.")]
Cache = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep packed weights for the next run.")
]
Template = Annotated[
    str | None,
    typer.Option(
        help="Chat template: auto (the model's own), chatml, or a file with a Jinja template."
    ),
]


@app.command()
def train(
    model: Model = None,
    data: Annotated[
        Path | None, typer.Option(help="Training records: .jsonl or .json with chat messages.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A settings.json of an earlier run; options win over it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --output.")
    ] = False,
    test_data: Annotated[
        Path | None, typer.Option(help="Held-out records, answered before and after.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="How many of them (default 20).")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer in tokens (default 128).")
    ] = None,
    template: Template = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps (or --epochs).")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data (default 1).")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Records in a forward pass (default 4).")
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="Forward passes in an optimiser step (default 1).")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Peak rate (default 2e-4).")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, linear (default) or cosine.")
    ] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Linear warmup (default 0).")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's (default 0).")] = None,
    max_grad_norm: Annotated[
        float | None, typer.Option(help="Global gradient clipping (default 1).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random (default 0).")] = None,
    rank: Annotated[int | None, typer.Option(help="LoRA rank (default 16).")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="LoRA alpha; the scale is alpha/rank (default 16).")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="LoRA dropout (default 0).")] = None,
    targets: Annotated[
        str | None,
        typer.Option(help="all-linear (default: all but the vocabulary head), or names by comma."),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(help="Frozen weights: nf4 (default) or none.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Weights that share an NF4 scale: even, 2 to 65536 (default 64)."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto (default), float32, bfloat16 or float16.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Default ruda:0.")] = None,
    cache: Annotated[
        bool | None,
        typer.Option("--cache/--no-cache", help="Keep packed weights for the next run (default)."),
    ] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--checkpointing/--no-checkpointing",
            help="Recompute activations in backward: less memory, more time (default off).",
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Longest record in tokens (default: no limit).")
    ] = None,
    truncate: Annotated[
        bool | None, typer.Option("--truncate/--no-truncate", help="Cut over-long records.")
    ] = None,
    train_on_prompt: Annotated[
        bool | None,
        typer.Option("--train-on-prompt/--train-on-answers", help="Learn the prompts too."),
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default 50).")
    ] = None,
) -> None:
    """Fine-tune a model on chat records and write the adapter and a report into --output."""
    given: dict[str, Any] = {
        key: value for key, value in locals().items() if key not in ("config", "resume")
    }
    settings = make_settings(config, given)
    _must_exist(settings.model, settings.data)
    from ruda_finetune.cli.train import train as run_training

    run_training(settings, resume)


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Option(help="A .gguf file or a model directory.")],
    data: Annotated[Path, typer.Option(help="Records with chat messages.")],
    adapter: Annotated[
        Path | None, typer.Option(help="An adapter folder in PEFT's format.")
    ] = None,
    template: Template = "auto",
    limit: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Only the first records.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=MOST, help="Records answered together.")
    ] = 32,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=MOST, help="Longest answer in tokens.")
    ] = 128,
    quantize: Annotated[str, typer.Option(help="nf4 or none.")] = "nf4",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: str = "ruda:0",
    cache: Cache = True,
    output: Annotated[
        Path | None, typer.Option(help="Write the answers here as JSON lines.")
    ] = None,
) -> None:
    """Loss and exact answers of a model (with an adapter) on records."""
    _must_exist(model, data)
    from ruda_finetune.cli.evaluate import evaluate as run_evaluation

    run_evaluation(
        model, data, adapter, template or "auto", limit, batch_size, max_new_tokens,
        _choice("quantize", quantize, "nf4", "none"), dtype, device, cache, output,
    )  # fmt: skip


@app.command()
def generate(
    model: Annotated[Path, typer.Option(help="A .gguf file or a model directory.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="What to ask; may be given more than once.")
    ] = None,
    input: Annotated[
        Path | None, typer.Option(help="Prompts from a file: JSON records, or a line each.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="An adapter folder in PEFT's format.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    template: Template = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, max=MOST)] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=1000.0, help="0: the most likely token each time.")
    ] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED)] = 0,
    batch_size: Annotated[int, typer.Option(min=1, max=MOST)] = 16,
    quantize: Annotated[str, typer.Option(help="nf4 or none.")] = "nf4",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: str = "ruda:0",
    cache: Cache = True,
) -> None:
    """Answer prompts with a model (and an adapter); answers go to standard output."""
    _must_exist(model)
    from ruda_finetune.cli.answer import answer

    answer(
        model, prompt or [], input, adapter, system, template or "auto", max_new_tokens,
        temperature, top_p, seed, batch_size, _choice("quantize", quantize, "nf4", "none"), dtype,
        device, cache,
    )  # fmt: skip


@app.command()
def profile(
    model: Annotated[Path, typer.Argument(help="A .gguf file or a model directory.")],
    tokens: Annotated[
        int, typer.Option(min=2, max=2**20, help="Tokens in the step's one row.")
    ] = 256,
    rank: Annotated[int, typer.Option(min=1, max=LARGEST_RANK, help="LoRA rank.")] = 16,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute activations in backward.")
    ] = False,
    quantize: Annotated[str, typer.Option(help="nf4 or none.")] = "nf4",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: str = "ruda:0",
    cache: Cache = True,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Train a few steps on random tokens and show where their time goes."""
    chosen = _choice("format", format, "table", "json")
    weights = _choice("quantize", quantize, "nf4", "none")
    _must_exist(model)
    from ruda_finetune.cli.profile import profile_command

    profile_command(
        model, tokens, rank, checkpointing, weights, dtype, device, cache, chosen
    )  # fmt: skip


cache_app = typer.Typer(help="Packed weights that are kept between runs.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")


@cache_app.command("list")
def list_cache() -> None:
    """Show what the cache holds and where it is."""
    from ruda_finetune.cli.cached import list_cache as run_list

    run_list()


@cache_app.command("clear")
def clear_cache() -> None:
    """Remove everything from the cache."""
    from ruda_finetune.cli.cached import clear_cache as run_clear

    run_clear()


def _must_exist(model: Path, data: Path | None = None) -> None:
    """Say that a file is missing before seconds of imports; everything else is checked later."""
    if data is not None and not data.is_file():
        from ruda_finetune.data.records import read_records

        read_records(data)  # says what is wrong with it
    if not model.exists():
        raise ModelFileError(f"[load_model] {model} does not exist; models are never downloaded")


def _choice(option: str, value: str, *allowed: str) -> Any:
    if value not in allowed:
        raise FinetuneError(f"[{option}] got {value!r}, wanted one of {', '.join(allowed)}")
    return value


def run() -> None:
    """Run the command and turn what went wrong into one line and an exit code."""
    from ruda_runtime import AbiMismatch, RudaError

    for stream in (sys.stdout, sys.stderr):  # a path or an answer may hold what it cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=True)
    except AbiMismatch:  # a RudaError too; main() has the words for a broken installation
        raise
    except FinetuneError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
    except (MemoryError, RudaError, NotImplementedError) as error:
        errors.print(f"[bold red]error:[/] {escape(str(error) or type(error).__name__)}")
        sys.exit(1)
