"""From process start to the first finished step of SmolLM2-135M, phase by phase.

    python packages/ruda-finetune/bench/start.py [--runs 5]

Every run is a process of its own. Cold: the model and every Python file and library of the
installation that can be dropped are dropped from the page cache, and the cache of packed weights is
empty. Cached: files in memory, packed weights in the cache. Prints one JSON object; `bench/run.py
start` writes the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from train_step import RANK, batch, model_file

TOKENS = 256


def one_start(began: float) -> dict[str, float]:
    """The phases of this process in seconds; `began` is its start on the system's clock."""
    interpreter = time.time() - began
    marks = [("interpreter", interpreter)]
    last = time.perf_counter()

    def mark(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        marks.append((name, now - last))
        last = now

    import torch

    mark("import torch")
    import ruda_torch

    mark("import ruda_torch")
    from ruda_finetune import CausalLMFinetuner, SFTTrainer, fuse_model, inject_lora, load_model
    from ruda_finetune.loading.quick_import import import_transformers

    import_transformers()
    mark("import transformers")
    loaded = load_model(model_file(), device="ruda:0")
    model = loaded.model
    fuse_model(model)
    mark("model ready")
    torch.manual_seed(0)
    inject_lora(model, "all-linear", rank=RANK, alpha=RANK)
    optimizer = ruda_torch.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=1e-4, weight_decay=0.0, fused_step=True, max_grad_norm=1.0,
    )  # fmt: skip
    finetuner = CausalLMFinetuner.from_model(model, activation_checkpointing=False)
    trainer = SFTTrainer(finetuner, optimizer, "bench", {}, max_grad_norm=1.0)
    ids = batch(TOKENS, model.config.vocab_size)
    trainer.train_step([{"input_ids": ids, "labels": ids}])
    mark("first step")
    found = dict(marks)
    found["whole start"] = sum(found.values())
    found["cached"] = float(loaded.report.cached)
    return found


def drop_files() -> None:
    """Ask the kernel to forget the model's pages and those of the installed packages."""
    import site

    folders = [*map(Path, site.getsitepackages()), Path(os.__file__).parent]
    files = [model_file()]
    for folder in folders:
        files += [
            p for p in folder.rglob("*") if p.suffix in (".py", ".pyc", ".so") or ".so." in p.name
        ]
    for path in files:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def start_process(cache: str) -> dict[str, float]:
    environment = {**os.environ, "RUDA_CACHE_DIR": cache, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, __file__, "--one", repr(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Medians over `runs` processes of each kind."""
    rounds: dict[str, list[dict[str, float]]] = {"cold": [], "warm files": [], "cached": []}
    with tempfile.TemporaryDirectory() as folder:
        start_process(f"{folder}/kept")  # fills the cache, and writes bytecode
        for number in range(runs):
            drop_files()
            rounds["cold"].append(start_process(f"{folder}/cold{number}"))
            rounds["warm files"].append(start_process(f"{folder}/warm{number}"))
            rounds["cached"].append(start_process(f"{folder}/kept"))
    if any(found["cached"] != (kind == "cached") for kind in rounds for found in rounds[kind]):
        raise SystemExit("a run did not use the cache as it should")
    return {
        kind: {name: statistics.median(run[name] for run in found) for name in found[0]}
        for kind, found in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(one_start(arguments.one)))
    else:
        print(json.dumps(measure(arguments.runs)))


if __name__ == "__main__":
    main()
