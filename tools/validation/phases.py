"""The phases of a run, in order; each adds its cases to the record."""

from __future__ import annotations

import json
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

from validation import machine
from validation.record import Phase
from validation.run import Build, Run, command
from validation.run_group import GroupRun
from validation.selection import Group
from validation.training import demo, second_slice

# Phases in order, with the share of the whole time by whose end each must be done.
SHARES = {"build": 0.35, "doctor": 0.40, "conformance": 0.66, "bundle": 0.84, "slice": 0.92,
          "demo": 1.0}  # fmt: skip


def build(run: Run, phase: Phase, deadline: float) -> None:
    run.build = Build(run)
    run.build.wait("dnn")


def doctor(run: Run, phase: Phase, deadline: float) -> None:
    done = command(
        [sys.executable, "-m", "ruda_runtime.doctor", "--json"], run.environment(), deadline,
        run.folder / "doctor.log",
    )  # fmt: skip
    try:
        report, _ = json.JSONDecoder().raw_decode(done.output, done.output.index("{"))
    except ValueError:
        run.case("doctor", "report", "error", seconds=done.seconds,
                 message=f"{done.how}\n{done.tail}")  # fmt: skip
        return
    # Imports are judged when ruda-torch is built; here is asked for the device alone.
    devices = report["target"]["devices"]
    phase.data = {name: report[name] for name in ("target", "driver", "compilers", "cpu")}
    name = devices[0]["name"] if devices else ""
    problem = report["target"]["error"] or ("" if devices else "no device")
    if run.target == "cuda" and "double" in name:
        problem = f"the device is {name}"
    if run.target == "double":
        run.record.device["name"] = name
    run.case("doctor", "device", "failed" if problem else "passed", seconds=round(done.seconds, 1),
             message=problem)  # fmt: skip


def conformance(run: Run, phase: Phase, deadline: float) -> None:
    _groups(run, phase, deadline, run.selection.groups, {})


def bundle(run: Run, phase: Phase, deadline: float) -> None:
    """The groups that can, again, with the kernels of a bundle and no compiler."""
    try:
        run.bundle = machine.unpacked(run.bundle, run.folder / "bundle-unpacked")
        run.record.bundle = machine.bundle_summary(run.bundle)
    except (OSError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        run.case(
            "bundle", "manifest", "error",
            message=f"no bundle at {run.bundle}: {type(error).__name__}: {error}. Build one with "
            "`nox -s bundle -- --arch sm_90`, name it by --bundle",
        )  # fmt: skip
        return
    groups = tuple(group for group in run.selection.groups if group.bundle)
    _groups(run, phase, deadline, groups, run.bundle_settings())
    if run.target == "double":
        return  # it may launch kernels that were never compiled
    counts = phase.data["kernels"]
    used = counts.get("bundle_hits", 0)
    others = counts.get("compiled", 0) + counts.get("disk_hits", 0)
    alone = used > 0 and others == 0
    run.case(
        "bundle", "used", "passed" if alone else "failed", data=counts,
        message="" if alone else f"{used} kernels came from the bundle, {others} from elsewhere",
    )  # fmt: skip


def _groups(
    run: Run, phase: Phase, deadline: float, groups: tuple[Group, ...], settings: dict[str, str]
) -> None:
    folder = run.folder / phase.name
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    if not groups:
        run.case(phase.name, "selection", "error", message="no group was selected")

    def one(group: Group) -> None:
        if run.build is not None and (failed := run.build.wait(group.needs)):
            run.case(phase.name, group.name, "not_run", message=failed)
            return
        outcome = GroupRun(
            run.record, run.selection, group, phase=phase.name, target=run.target,
            environment=run.environment(**settings), folder=folder, deadline=deadline,
        ).run()  # fmt: skip
        for name, count in outcome.counts.items():
            counts[name] = counts.get(name, 0) + count

    with ThreadPoolExecutor(max(run.jobs, 1)) as pool:
        list(pool.map(one, groups))
    phase.data["kernels"] = counts


def perform(run: Run, names: list[str]) -> None:
    """Run phases, each until its share of the time; what one leaves over goes to the next."""
    began = time.monotonic()
    whole = run.deadline - began
    last = max(SHARES[name] for name in names)
    for name in names:
        phase = Phase(name)
        run.record.phases.append(phase)
        started = time.monotonic()
        PHASES[name](run, phase, began + whole * SHARES[name] / last)
        phase.seconds = round(time.monotonic() - started, 1)
        _settle(run, phase)
        run.record.save()
        print(f"{name}: {phase.status}, {phase.sentence}, {phase.seconds:.0f} s", flush=True)
    if run.build is not None:  # its second half may have failed after its phase
        run.build.wait("torch")
        (phase,) = (each for each in run.record.phases if each.name == "build")
        _settle(run, phase)


def _settle(run: Run, phase: Phase) -> None:
    cases = [each for each in run.record.cases if each.phase == phase.name]
    against = sum(each.counts_against for each in cases)
    phase.sentence = f"{len(cases)} cases, {against} did not pass"
    phase.status = "failed" if against or not cases else "passed"


PHASES = {"build": build, "doctor": doctor, "conformance": conformance, "bundle": bundle,
          "slice": second_slice, "demo": demo}  # fmt: skip
