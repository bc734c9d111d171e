"""`nox -s bench`: every package's measurements beside its peers, appended to bench/ledger.csv.

python bench/run.py             # everything
python bench/run.py operators   # kernels, one process a script
python bench/run.py steps       # whole training steps and memory, one process a tool
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import ledger

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
OPERATORS = [
    ("ruda-blas/bench/gemm.py", "--ledger"),
    ("ruda-blas/bench/nf4.py", "--ledger"),
    ("ruda-torch/bench/training_operators.py",),
]
QUANTIZED_PEER = "peft+bitsandbytes"
PEERS = (QUANTIZED_PEER, "peft")  # the second with a dense base: it computes another loss
STEP_CASES = [(256, False), (256, True)]
ROUNDS = 3


def operators() -> None:
    for script, *options in OPERATORS:
        subprocess.run([sys.executable, str(PACKAGES / script), *options], check=True)


def one_process(tool: str, tokens: int, checkpointing: bool) -> dict[str, Any]:
    script = PACKAGES / "ruda-finetune" / "bench" / "train_step.py"
    command = [sys.executable, str(script), "--tool", tool, "--tokens", str(tokens)]
    if checkpointing:
        command.append("--checkpointing")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tool}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps() -> None:
    """The tools take turns, one process each; medians over the rounds."""
    for tokens, checkpointing in STEP_CASES:
        rounds: dict[str, list[dict[str, Any]]] = {tool: [] for tool in ("ruda", *PEERS)}
        for _ in range(ROUNDS):
            for tool, found in rounds.items():
                found.append(one_process(tool, tokens, checkpointing))
        shape = f"batch 1, {tokens} tokens" + (", checkpointing" if checkpointing else "")
        check_losses(rounds["ruda"][0], rounds[QUANTIZED_PEER][0])
        for peer in PEERS:
            append_rows(shape, peer, rounds["ruda"], rounds[peer])


def check_losses(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse to compare runs that compute different things."""
    first, other = ours["losses"][0], theirs["losses"][0]
    if abs(first - other) > 1e-3 * other:
        raise SystemExit(f"first losses differ: ruda {first}, {theirs['tool']} {other}")


def append_rows(
    shape: str, peer: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> None:
    packages = ledger.versions("torch", "transformers", "peft", "bitsandbytes", "ruda-finetune")
    base = "float32, NF4 base" if peer == QUANTIZED_PEER else "float32, NF4 base; peer dense"
    for field, operation, unit, scale in (
        ("step_ms", "SmolLM2-135M LoRA step", "ms", 1.0),
        ("peak_bytes", "SmolLM2-135M LoRA memory", "MiB", 2.0**20),
    ):
        mine = [found[field] / scale for found in ours]
        other = [found[field] / scale for found in theirs]
        share, limit = 0.0, ""
        if field == "step_ms":
            limit = "true FLOPs / float32 GEMM rate of the process"
            share = statistics.median(found["flop_share"] for found in ours)
        ledger.append(
            operation,
            shape,
            base,
            statistics.median(mine),
            statistics.median(other),
            unit,
            peer,
            packages,
            statistics.median(a / b for a, b in zip(mine, other)),
            limit,
            share,
        )


PARTS = {"operators": operators, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure and append to bench/ledger.csv.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
