"""`ruda-finetune profile`: where the time of a training step goes."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from ruda_finetune.cli.session import check_positions, check_rank, open_model, show_warnings
from ruda_finetune.lora import inject_lora
from ruda_finetune.training import CausalLMFinetuner, SFTTrainer

_WARM_UP, _STEPS = 2, 3

# What an operator belongs to, by its name: the first that fits. What it calls belongs to it.
GROUPS: tuple[tuple[str, str], ...] = (
    ("linear layers, backward", r"ruda::nf4_(linear_input_grad|lora_linear_backward)"),
    ("linear layers, forward", r"ruda::(nf4_|lora_low)"),
    ("attention, backward", r"(ruda::attention_backward|.*attention.*_backward)$"),
    ("attention, forward", r"(ruda::attention|aten::(_?scaled_dot_product|.*attention))"),
    ("loss over the vocabulary", r"ruda::linear_cross_entropy"),
    ("norms, rotary, activations", r"ruda::(rms_norm|layer_norm|silu_mul|rotary|softmax)"),
    ("norms, rotary, activations", r"aten::(native_layer_norm|silu|gelu|_softmax)"),
    ("optimiser", r"ruda::(adamw_step_|gradient_norm|unscale_gradients_)|aten::_foreach"),
    ("dense products", r"aten::(mm|addmm|bmm|baddbmm)$"),
)
OTHER_OPERATORS = "other operators"
UNACCOUNTED = "Python, autograd, dispatch"
_OPERATOR = re.compile(r"(aten|ruda)::")


@dataclass
class Row:
    """One group of operators in one step."""

    name: str
    calls: float = 0.0
    ms: float = 0.0
    share: float = 0.0
    gflop: float | None = None
    gflops: float | None = None
    of_gemm: float | None = None


@dataclass
class StepProfile:
    """A step's rows; `ms` of the rows add up to `step_ms`.

    plain_step_ms: a step without the profiler. gemm_gflops: the rate of a float32 product of
    512 x 2048 x 2048 on the same device, in the same process.
    """

    model: str
    device: str
    dtype: str
    tokens: int
    rank: int
    checkpointing: bool
    step_ms: float
    plain_step_ms: float
    gemm_gflops: float
    peak_mib: float | None
    rows: list[Row]


def profile_command(
    model: Path,
    tokens: int,
    rank: int,
    checkpointing: bool,
    quantize: Literal["nf4", "none"],
    dtype: str,
    device: str,
    use_cache: bool,
    output_format: Literal["table", "json"],
) -> None:
    """Load the model, train a few steps on random tokens, and print where the time went."""
    notes = Console(stderr=True, highlight=False)
    show_warnings(notes)

    def inspect(found: Any) -> None:
        check_positions(found, "tokens", tokens)
        check_rank(found, "all-linear", rank)

    loaded = open_model(
        model, quantize, dtype, device, cache=use_cache, needs_tokenizer=False, inspect=inspect
    )
    source = loaded.source
    torch.manual_seed(0)
    inject_lora(loaded.model, "all-linear", rank=rank, alpha=float(rank))
    found = profile_step(
        loaded.model, source.device, tokens, checkpointing, str(source.source.path.name), rank,
        source.dtype,
    )  # fmt: skip
    if output_format == "json":
        print(json.dumps(asdict(found), indent=1))
    else:
        print_table(found)


def profile_step(
    model: Any,
    device: torch.device,
    tokens: int,
    checkpointing: bool,
    name: str,
    rank: int,
    dtype: torch.dtype,
) -> StepProfile:
    """Profile training steps of a model with adapters, on one row of random token ids."""
    trainer = SFTTrainer(
        CausalLMFinetuner.from_model(model, activation_checkpointing=checkpointing),
        _optimizer([p for p in model.parameters() if p.requires_grad]),
        "profile",
        {},
        max_grad_norm=1.0,
    )
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(0, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids}
    plain = _timed_steps(trainer, batch, _WARM_UP + _STEPS)[_WARM_UP:]
    peak = None
    if device.type == "ruda":
        torch.accelerator.reset_peak_memory_stats()
        trainer.train_step([batch])
        peak = torch.accelerator.max_memory_allocated() / 2**20
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        times = _timed_steps(trainer, batch, _STEPS)
    step_ms = statistics.mean(times)
    rate = gemm_rate(device)
    rows = make_rows(recorded.events() or (), _STEPS, step_ms, rate)
    return StepProfile(
        name, str(device), str(dtype).removeprefix("torch."), tokens, rank, checkpointing, step_ms,
        statistics.median(plain), rate / 1e9, peak, rows,
    )  # fmt: skip


def _optimizer(parameters: list[Any]) -> torch.optim.Optimizer:
    if parameters[0].device.type == "ruda":
        import ruda_torch

        return ruda_torch.AdamW(parameters, lr=1e-4, fused_step=True, max_grad_norm=1.0)
    return torch.optim.AdamW(parameters, lr=1e-4)


def _timed_steps(trainer: SFTTrainer, batch: Any, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        trainer.train_step([batch])
        times.append((time.perf_counter() - started) * 1e3)
    return times


def gemm_rate(device: torch.device) -> float:
    """FLOP/s of a float32 product of 512 x 2048 x 2048, the best of nine."""
    a = torch.randn(512, 2048, device=device)
    b = torch.randn(2048, 2048, device=device)
    best = float("inf")
    for _ in range(9):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * 512 * 2048 * 2048 / best


@cache
def group_of(name: str) -> str | None:
    """The group of an operator; None for what has none of its own."""
    for group, pattern in GROUPS:
        if re.match(pattern, name):
            return group
    return None


def make_rows(events: Iterable[Any], steps: int, step_ms: float, rate: float) -> list[Row]:
    """The rows of one step from the profiler's events of several."""
    names = dict.fromkeys(group for group, _ in GROUPS)
    rows = {name: Row(name) for name in (*names, OTHER_OPERATORS)}
    flop = dict.fromkeys(rows, 0.0)
    for event in events:
        if not _OPERATOR.match(event.name):
            continue  # annotations, and autograd's nodes
        outer = _outer_group(event)
        row = rows[outer or group_of(event.name) or OTHER_OPERATORS]
        # A group's time includes what its operators call; each event adds what it took itself.
        row.ms += event.self_cpu_time_total / 1e3 / steps
        if outer is None:
            row.calls += 1 / steps
            flop[row.name] += flops(event.name, event.input_shapes) / steps
    rows[UNACCOUNTED] = Row(UNACCOUNTED, ms=step_ms - sum(row.ms for row in rows.values()))
    for row in rows.values():
        row.share = row.ms / step_ms
        if flop.get(row.name) and row.ms > 0:
            row.gflop = flop[row.name] / 1e9
            row.gflops = row.gflop / row.ms * 1e3
            row.of_gemm = row.gflops * 1e9 / rate
    return [row for row in rows.values() if row.calls or row.name == UNACCOUNTED]


def _outer_group(event: Any) -> str | None:
    """The group of the outermost operator around an event that has one."""
    found = None
    parent = event.cpu_parent
    while parent is not None:
        found = group_of(parent.name) or found
        parent = parent.cpu_parent
    return found


def flops(name: str, shapes: Any) -> float:
    """Multiplications and additions of one call; 0 where the operator is no product.

    An attention is taken as causal: half of its square.
    """
    given = _arguments(name, shapes)
    rows_of = given.get("grad") or given.get("x") or given.get("hidden") or []
    rows = prod(rows_of[:-1])
    a, b = prod(given.get("lora_a") or [0]), prod(given.get("lora_b") or [0])
    backward = "backward" in name
    if "packed" in given:
        base = 2.0 * rows * 2 * prod(given["packed"])
        return base + 2.0 * rows * (a + b) * (2 if backward else 1)
    if name == "ruda::lora_low":
        return 2.0 * rows * a
    if name.startswith("ruda::linear_cross_entropy"):
        # the logits and, in the same operator, the hidden states' gradient
        return 2 * 2.0 * rows * prod(given.get("head") or [0])
    if "attention" in name and given.get("query") and given.get("key"):
        keys = given["key"][-2 if len(given["key"]) == 4 else 0]  # dense or packed rows
        return (5.0 if backward else 2.0) * prod(given["query"]) * keys
    if re.match(r"aten::(mm|bmm|addmm|baddbmm)$", name):
        left, right = [shape for shape in shapes if len(shape) >= 2][-2:]
        return 2.0 * prod(left) * right[-1]
    return 0.0


def _arguments(name: str, shapes: Any) -> Mapping[str, list[int]]:
    """An operator's recorded shapes by the names in its schema."""
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    if packet is None:
        return {}
    overload = getattr(packet, packet.overloads()[0])
    names = [argument.name for argument in overload._schema.arguments]
    return {key: shape for key, shape in zip(names, shapes or ()) if isinstance(shape, list)}


def print_table(found: StepProfile) -> None:
    """The profile as a table of Markdown on a pipe, drawn on a terminal."""
    console = Console(highlight=False)
    peak = "" if found.peak_mib is None else f", peak {found.peak_mib:.0f} MiB"
    title = (
        f"{found.model}, {found.tokens} tokens, rank {found.rank}, {found.dtype}, {found.device}"
        f"{', checkpointing' if found.checkpointing else ''}: {found.step_ms:.0f} ms a step "
        f"({found.plain_step_ms:.0f} ms without the profiler), GEMM {found.gemm_gflops:.0f} GFLOP/s"
        f"{peak}"
    )
    columns = ("part of the step", "calls", "ms", "share", "GFLOP", "GFLOP/s", "of GEMM")
    lines = [_cells(row) for row in [*found.rows, total(found)]]
    if not console.is_terminal:
        print(title + "\n")
        print("| " + " | ".join(columns) + " |")
        print("| --- |" + " ---: |" * (len(columns) - 1))
        for line in lines:
            print("| " + " | ".join(line) + " |")
        return
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def total(found: StepProfile) -> Row:
    """The whole step as a row."""
    gflop = sum(row.gflop or 0.0 for row in found.rows)
    rate = gflop / found.step_ms * 1e3
    return Row(
        "the whole step", sum(row.calls for row in found.rows), found.step_ms, 1.0, gflop, rate,
        rate / found.gemm_gflops,
    )  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        row.name, f"{row.calls:.0f}" if row.calls else "", f"{row.ms:.1f}", f"{row.share:.1%}",
        number(row.gflop, ".1f"), number(row.gflops, ".0f"), number(row.of_gemm, ".2f"),
    )  # fmt: skip
