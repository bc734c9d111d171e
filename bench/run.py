"""`nox -s bench`: kernels, the command's training step beside peft + bitsandbytes, memory.

python bench/run.py            # everything
python bench/run.py operations # one part: operations, steps
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
import operations

HERE = Path(__file__).resolve().parent
PEERS = ("peft+bitsandbytes", "peft")
STEP_CASES = [(256, False), (256, True)]
ROUNDS = 3


def one_process(tool: str, tokens: int, checkpointing: bool) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "train_step.py"), "--tool", tool, "--tokens", str(tokens)]
    if checkpointing:
        command.append("--checkpointing")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tool}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps() -> None:
    """A B C A B C …, one process a tool; medians over the rounds."""
    packages = ledger.versions("torch", "transformers", "peft", "bitsandbytes", "ruda-finetune")
    for tokens, checkpointing in STEP_CASES:
        rounds: dict[str, list[dict[str, Any]]] = {tool: [] for tool in ("ruda", *PEERS)}
        for _ in range(ROUNDS):
            for tool, found in rounds.items():
                found.append(one_process(tool, tokens, checkpointing))
        start = rounds["ruda"][0]["losses"][0]
        shape = f"batch 1, {tokens} tokens" + (", checkpointing" if checkpointing else "")
        for peer in PEERS:
            other = rounds[peer][0]["losses"][0]
            if abs(start - other) > 0.05 * other:
                raise SystemExit(f"first losses differ: ruda {start}, {peer} {other}")
            for field, operation, unit, scale in (
                ("step_ms", "SmolLM2-135M LoRA step", "ms", 1.0),
                ("peak_bytes", "SmolLM2-135M LoRA memory", "MiB", 2.0**20),
            ):
                ours = [found[field] / scale for found in rounds["ruda"]]
                theirs = [found[field] / scale for found in rounds[peer]]
                ratio = statistics.median(a / b for a, b in zip(ours, theirs))
                share = 0.0
                limit = ""
                if field == "step_ms":
                    limit = "true FLOPs / float32 GEMM rate of the process"
                    share = statistics.median(found["flop_share"] for found in rounds["ruda"])
                ledger.append(
                    operation, shape, "float32, NF4 base", statistics.median(ours),
                    statistics.median(theirs), unit, peer, packages, ratio, limit, share,
                )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=["operations", "steps", []], default=[])
    parts = parser.parse_args().parts or ["operations", "steps"]
    if "operations" in parts:
        operations.main()
    if "steps" in parts:
        steps()


if __name__ == "__main__":
    main()
