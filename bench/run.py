"""`nox -s bench`: every package's measurements beside its peers, appended to bench/ledger.csv.

python bench/run.py             # everything
python bench/run.py operators   # kernels, one process a script
python bench/run.py steps       # whole training steps and memory, one process a tool
python bench/run.py runtime     # fixed costs of ruda-runtime, launches on the driver double
python bench/run.py start       # from process start to the first step, one process a run
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
OPERATORS = [
    ("ruda-blas/bench/gemm.py", "--ledger"),
    ("ruda-blas/bench/nf4.py", "--ledger"),
    ("ruda-torch/bench/training_operators.py",),
    ("ruda-torch/bench/attention.py",),
]
Found = dict[str, Any]
QUANTIZED_PEER = "peft+bitsandbytes"
PEERS = (QUANTIZED_PEER, "peft")  # the second with a dense base: it computes another loss
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """Settings of `train_step.py` that one process can take together."""

    lengths: tuple[int, ...]
    checkpointing: bool = False
    dtype: str = "float32"
    extra: tuple[str, ...] = ()

    def options(self) -> list[str]:
        lengths = [str(length) for length in self.lengths]
        flags = ["--checkpointing"] if self.checkpointing else []
        return ["--tokens", *lengths, "--dtype", self.dtype, *flags, *self.extra]

    def shape(self, tokens: int) -> str:
        return f"batch 1, {tokens} tokens" + (", checkpointing" if self.checkpointing else "")


STEP_CASES = [Case((256, 512)), Case((256,), checkpointing=True)]
HALF = Case((256,), dtype="bfloat16")
# the peers' bfloat16 step takes 20 to 30 times as long on a CPU: one is enough
HALF_PEER = Case((256,), dtype="bfloat16", extra=("--steps", "1", "--warm-up", "0"))
TRIMMING = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


def operators() -> None:
    for script, *options in OPERATORS:
        subprocess.run([sys.executable, str(PACKAGES / script), *options], check=True)


def runtime() -> None:
    """Where there is no peer, the row's limit is the budget that tests hold it to."""
    packages = ledger.versions("numpy", "triton", "ruda-runtime")
    for script in ("overhead.py", "device.py"):
        command = [sys.executable, str(PACKAGES / "ruda-runtime" / "bench" / script), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{script}: the measurement failed")
        for row in json.loads(done.stdout.splitlines()[-1]):
            ledger.append(packages=packages, **row)


def one_process(tool: str, case: Case, environment: dict[str, str] | None = None) -> list[Found]:
    """The results of one process, in the order of the case's lengths."""
    script = PACKAGES / "ruda-finetune" / "bench" / "train_step.py"
    command = [sys.executable, str(script), "--tool", tool, *case.options()]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        raise SystemExit(f"{tool}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def steps() -> None:
    """The tools take turns, one process each; medians over the rounds. About 15 minutes."""
    plain: list[list[Found]] = []
    for case in STEP_CASES:
        rounds: dict[str, list[list[Found]]] = {tool: [] for tool in ("ruda", *PEERS)}
        for _ in range(ROUNDS):
            for tool, found in rounds.items():
                found.append(one_process(tool, case))
        check_losses(rounds["ruda"][0][0], rounds[QUANTIZED_PEER][0][0])
        for index, tokens in enumerate(case.lengths):
            for peer in PEERS:
                append_rows(
                    case.shape(tokens),
                    peer,
                    [found[index] for found in rounds["ruda"]],
                    [found[index] for found in rounds[peer]],
                    memory=index == 0,  # later lengths share the process's peak
                )
        plain = plain or rounds["ruda"]
        trimmed = one_process(QUANTIZED_PEER, case, TRIMMING)[0]
        print(f"{case.shape(256)}: {QUANTIZED_PEER} with glibc trimming takes "
              f"{trimmed['peak_bytes'] / 2**20:.0f} MiB, {trimmed['step_ms']:.0f} ms")  # fmt: skip
    half_steps([found[0] for found in plain])


def half_steps(wide: list[Found]) -> None:
    """bfloat16 beside our own float32 step of the same rounds, and beside the peer once."""
    half = [one_process("ruda", HALF)[0] for _ in range(ROUNDS)]
    peer = one_process(QUANTIZED_PEER, HALF_PEER)[0]
    shape = HALF.shape(256)
    append_row("step_ms", shape, "bfloat16, NF4 base", half, "ruda float32", wide)
    append_row("kept_bytes", shape, "bfloat16, NF4 base", half, "ruda float32", wide)
    append_row("step_ms", shape, "bfloat16, NF4 base", half[:1], QUANTIZED_PEER, [peer])


def check_losses(ours: Found, theirs: Found) -> None:
    """Refuse to compare runs that compute different things."""
    first, other = ours["losses"][0], theirs["losses"][0]
    if abs(first - other) > 1e-3 * other:
        raise SystemExit(f"first losses differ: ruda {first}, {theirs['tool']} {other}")


def append_rows(
    shape: str, peer: str, ours: list[Found], theirs: list[Found], memory: bool
) -> None:
    base = "float32, NF4 base" if peer == QUANTIZED_PEER else "float32, NF4 base; peer dense"
    for field in ("step_ms", "peak_bytes", "kept_bytes"):
        if field in ours[0] and (memory or field != "peak_bytes"):
            append_row(field, shape, base, ours, peer, theirs)


# what a field of a result is called in the ledger, its unit, and the unit's size
FIELDS = {
    "step_ms": ("SmolLM2-135M LoRA step", "ms", 1.0),
    "peak_bytes": ("SmolLM2-135M LoRA memory", "MiB", 2.0**20),
    "kept_bytes": ("SmolLM2-135M LoRA activations", "MiB", 2.0**20),
}


def append_row(
    field: str, shape: str, dtype: str, ours: list[Found], peer: str, theirs: list[Found]
) -> None:
    operation, unit, scale = FIELDS[field]
    mine = [found[field] / scale for found in ours]
    other = [found[field] / scale for found in theirs]
    share, limit = 0.0, ""
    if field == "step_ms":
        limit = "true FLOPs / float32 GEMM rate of the process"
        share = statistics.median(found["flop_share"] for found in ours)
    ledger.append(
        operation,
        shape,
        dtype,
        statistics.median(mine),
        statistics.median(other),
        unit,
        peer,
        ledger.versions("torch", "transformers", "peft", "bitsandbytes", "ruda-finetune"),
        statistics.median(a / b for a, b in zip(mine, other)),
        limit,
        share,
    )


def start() -> None:
    """From process start to the first finished step; there is no peer, so no ratio."""
    script = PACKAGES / "ruda-finetune" / "bench" / "start.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit("start: the measurement failed")
    packages = ledger.versions("torch", "transformers", "ruda-finetune")
    for kind, phases in json.loads(done.stdout.splitlines()[-1]).items():
        for name, seconds in phases.items():
            if name != "cached":
                row = (f"start: {name}", f"SmolLM2-135M, {kind}", "float32, NF4 base")
                ledger.append(*row, seconds, 0.0, "s", "", packages)


PARTS = {"runtime": runtime, "operators": operators, "steps": steps, "start": start}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure and append to bench/ledger.csv.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
