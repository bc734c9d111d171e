"""tools/gpu_validation.py: what counts as a validation, and what fails it.

Runs are rehearsals on the driver double, over test files written here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "gpu_validation.py"
sys.path.insert(0, str(ROOT / "tools"))

from validation import record, selection  # noqa: E402

TESTS = """
import os
import pytest
import numpy as np
import ruda_runtime as rr
from ruda_runtime import conformance

def test_conforms():
    x = rr.Tensor.from_numpy(np.ones(4, np.float32))
    assert "double" in rr.devices()[0].name
    conformance.check(x.numpy(), np.full(4, 1 + 1e-6), "float32")

def test_crashes():
    os.abort()

def test_fails_after_the_crash():
    assert rr.empty(3).shape == (4,)

def test_skips():
    pytest.skip("no reason")

def test_skips_with_a_reason():
    pytest.skip("of this machine")

@pytest.mark.xfail(reason="known", strict=False)
def test_is_expected_to_fail():
    assert False

def test_of_the_host():
    assert False
"""


def write_selection(folder: Path, text: str = TESTS) -> Path:
    (folder / "test_sample.py").write_text(text)
    file = folder / "selection.toml"
    file.write_text(
        f'[[group]]\nname = "sample"\npaths = ["{folder}/test_sample.py"]\nneeds = "runtime"\n'
        "bundle = true\n"
        '[[left_out]]\npattern = "*_of_the_host"\nreason = "about the host"\n'
        '[[allowed_skip]]\npattern = "*_with_a_reason"\nreason = "another machine has it"\n'
    )
    return file


def arguments(folder: Path, file: Path, *more: str) -> list[str]:
    return [
        sys.executable, str(TOOL), "--target", "double", "--installed", "--selection", str(file),
        "--output", str(folder / "result.json"), "--jobs", "1", *more,
    ]  # fmt: skip


def run(folder: Path, file: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        arguments(folder, file, *more), capture_output=True, text=True, timeout=240
    )
    result = json.loads((folder / "result.json").read_text())
    assert record.problems(result) == [], done.stdout + done.stderr
    assert result["sentence"] in done.stdout
    return done.returncode, result


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {case["id"].rpartition("::")[2]: case["status"] for case in result["cases"]}


def case(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in result["cases"] if each["id"].endswith(name))
    return found


def test_without_a_gpu_it_fails(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, str(TOOL), "--output", str(output)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    result = json.loads(output.read_text())
    assert done.returncode == 1 and result["verdict"] == "failed" and result["cases"] == []
    assert result["sentence"].startswith("no GPU: ") and record.problems(result) == []


def test_every_case_is_recorded_and_a_crash_costs_one(tmp_path: Path) -> None:
    code, result = run(tmp_path, write_selection(tmp_path), "--only", "doctor", "conformance")
    assert code == 1 and result["verdict"] == "failed"
    assert statuses(result) == {
        "doctor/device": "passed",
        "test_conforms": "passed",
        "test_crashes": "error",
        "test_fails_after_the_crash": "failed",
        "test_skips": "skipped",
        "test_skips_with_a_reason": "skipped",
        "test_is_expected_to_fail": "skipped",
    }
    assert "killed by signal 6" in case(result, "test_crashes")["message"]
    assert "assert (3,) == (4,)" in case(result, "test_fails_after_the_crash")["message"]
    assert case(result, "test_conforms")["data"]["error"] == pytest.approx(0.19, abs=0.02)
    assert case(result, "test_skips")["accepted"] == ""
    assert case(result, "test_skips_with_a_reason")["accepted"] == "another machine has it"
    assert [each["reason"] for each in result["left_out"]] == ["about the host"]
    assert result["sentence"].startswith("4 of 7 cases did not pass")
    assert "double" in result["device"]["name"] and not result["device"]["real"]
    assert result["versions"]["ruda-runtime"] and result["source"]["sha256"]


def test_a_rehearsal_never_validates(tmp_path: Path) -> None:
    file = write_selection(tmp_path)
    code, result = run(tmp_path, file, "--only", "conformance", "--group", "sample:conforms")
    assert (code, result["verdict"]) == (3, "rehearsal")
    assert "driver double, which is not a GPU" in result["sentence"]
    output = tmp_path / "result.json"
    command = [sys.executable, str(TOOL), "--check", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no validation: it was not made on a GPU" in done.stderr


def test_an_empty_selection_a_missing_bundle_and_no_time_are_failures(tmp_path: Path) -> None:
    file = write_selection(tmp_path)
    code, result = run(tmp_path, file, "--only", "conformance", "--group", "sample:nothing")
    assert code == 1 and case(result, "sample::selection")["message"] == "no case was selected"
    code, result = run(tmp_path, file, "--only", "bundle", "--bundle", str(tmp_path / "none"))
    assert code == 1 and "no bundle at" in case(result, "bundle/manifest")["message"]
    code, result = run(tmp_path, file, "--only", "conformance", "--budget-s", "0.1")
    assert code == 1 and result["totals"]["passed"] == 0
    done = subprocess.run(arguments(tmp_path, file, "--group", "other"), capture_output=True)
    assert done.returncode == 2 and b"wanted one of: sample" in done.stderr


def test_a_packed_bundle_is_used_without_triton(tmp_path: Path) -> None:
    names = ("abi", "source_revision", "packages", "architectures", "compiler", "image",
             "ptx_version")  # fmt: skip
    manifest = {**dict.fromkeys(names, "x"), "kernels": [], "left_out": []}
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "manifest.json").write_text(json.dumps(manifest))
    packed = tmp_path / "made.tar.xz"
    with tarfile.open(packed, "w:xz") as archive:
        archive.add(tmp_path / "made", "made")
    text = (
        "import importlib.util, os\nfrom pathlib import Path\ndef test_environment():\n"
        "    assert importlib.util.find_spec('triton') is None\n"
        "    assert (Path(os.environ['RUDA_BUNDLE']) / 'manifest.json').exists()\n"
    )
    code, result = run(tmp_path, write_selection(tmp_path, text), "--only", "bundle",
                       "--bundle", str(packed))  # fmt: skip
    assert (code, result["verdict"]) == (3, "rehearsal"), result["cases"]
    assert result["bundle"]["kernels"] == 0 and result["bundle"]["compiler"] == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_known_survives_a_kill(tmp_path: Path, number: signal.Signals) -> None:
    text = "import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(20)\n"
    file = write_selection(tmp_path, text)
    output = tmp_path / "result.json"
    process = subprocess.Popen(arguments(tmp_path, file, "--only", "conformance"))
    until = time.monotonic() + 60
    while not (output.exists() and json.loads(output.read_text())["cases"]):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    process.wait(30)
    result = json.loads(output.read_text())
    assert record.problems(result) == [] and statuses(result)["test_quick"] == "passed"
    wanted = {signal.SIGTERM: "failed", signal.SIGKILL: "running"}
    assert result["verdict"] == wanted[number] and record.refusal(result)


def passing() -> dict[str, Any]:
    """The content of a file that is a validation."""
    kept = record.Record(Path("unused"), device={"real": True, "name": "A GPU"})
    kept.phases.append(record.Phase("conformance", "passed"))
    kept.cases += [
        record.Case("a", "conformance", "g", "passed"),
        record.Case("b", "conformance", "g", "skipped", accepted="a reason"),
    ]
    kept.verdict, kept.sentence = kept._judge("")
    content: dict[str, Any] = json.loads(json.dumps(kept.as_dict()))
    return content


def test_what_counts_as_a_validation() -> None:
    content = passing()
    assert content["verdict"] == "passed" and record.refusal(content) == ""
    assert content["sentence"] == "all 1 cases passed, 1 accepted with a reason on A GPU"
    skipped = passing()
    skipped["cases"][1]["accepted"] = ""
    assert "1 of its 2 cases did not pass" in record.refusal(skipped)
    for change, words in [
        ({"verdict": "partial"}, "its verdict is partial"),
        ({"device": {"real": False}}, "it was not made on a GPU"),
        ({"schema": 2}, "schema: got 2, wanted 1"),
        ({"totals": {}}, "totals"),
        ({"cases": [{"id": "a"}]}, "cases: `phase` is missing"),
        ({"seconds": "long"}, "`seconds` is 'long'"),
        ({"cases": passing()["cases"][:1] * 2}, "cases: a is there 2 times"),
    ]:
        assert words in record.refusal({**passing(), **change}), change
    assert record.refusal([]) == "it is no result file: it is not a JSON object"


def test_the_selection_names_what_is_there() -> None:
    chosen = selection.read()
    for group in chosen.groups:
        for path in group.paths:
            assert (ROOT / path).exists(), path
    for rule in (*chosen.left_out, *chosen.allowed_skips):
        assert rule.reason, rule.pattern


def test_committed_results_are_well_formed_and_of_gpus() -> None:
    for file in (ROOT / "docs" / "validation").glob("*.json"):
        content = json.loads(file.read_text())
        assert record.problems(content) == [] and content["device"]["real"], file.name


def test_triton_can_be_hidden() -> None:
    code = (
        "import importlib.util as u\nassert u.find_spec('triton') is None\n"
        "try: import triton\nexcept ModuleNotFoundError: print('hidden')"
    )
    folder = ROOT / "tools" / "validation" / "no_triton"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "hidden\n", done.stderr
