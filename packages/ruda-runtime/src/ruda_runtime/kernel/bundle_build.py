"""Building a bundle: every registered kernel for every architecture, without a GPU."""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ruda_runtime import _native
from ruda_runtime._abi import PROVIDES
from ruda_runtime.errors import RudaError, RudaRuntimeError, RudaValueError
from ruda_runtime.kernel import triton_compiler
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.kernel.bundle_use import FORMAT, specialisation_key
from ruda_runtime.kernel.discovery import PACKAGES, families, kernel_of
from ruda_runtime.kernel.resolve import obtain
from ruda_runtime.kernel.settings import CompileOptions, read_options
from ruda_runtime.launch import Specialisation

# Bytes of shared memory that a block can ask for (CUDA C++ Programming Guide).
_SHARED_MEMORY = {75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448,
                  100: 232448, 103: 232448, 120: 101376, 121: 101376}  # fmt: skip
_FIRST_BF16 = 80


class Job(NamedTuple):
    """One kernel to compile."""

    package: str
    kernel: str
    wanted: Specialisation
    architecture: int


class Outcome(NamedTuple):
    """What became of a job: code, or why it was left out, or what went wrong."""

    job: Job
    artifact: Artifact | None = None
    source: str = ""
    left_out: str = ""
    error: str = ""


@dataclass
class Report:
    """A built bundle in numbers.

    Attributes:
        path: its folder.
        compiled: kernels in it.
        left_out: those that an architecture cannot do.
    """

    path: Path
    compiled: int = 0
    left_out: list[Outcome] = field(default_factory=list)


def build(
    output: Path,
    architectures: Sequence[int],
    *,
    packages: Sequence[str] = PACKAGES,
    sample: bool = False,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compile the kernels of the installed packages into the folder ``output``.

    Args:
        output: a new folder, or that of an older bundle, which is replaced when all is compiled.
        architectures: 90 for sm_90.
        packages: import names.
        sample: of each kernel only one specialisation, with bfloat16 where it has that; where an
            architecture cannot do it, another one as well.
        jobs: compiling processes.
        progress: called with the number of finished and of all jobs.

    Raises:
        RudaValueError: ``output`` holds something that is no bundle.
        RudaRuntimeError: kernels do not compile; the text names each.
    """
    if output.exists() and any(output.iterdir()) and not (output / "manifest.json").exists():
        raise RudaValueError(f"[bundle] output: {output} is a folder that holds no bundle")
    options = read_options()
    if options.compiler == "nvrtc":
        raise RudaValueError("[bundle] got RUDA_CUDA_COMPILER=nvrtc, wanted cubin or ptx")
    wanted = list(plan(architectures, packages, sample))
    if not wanted:
        raise RudaRuntimeError(f"[bundle] none of {', '.join(packages)} has kernels to compile")
    outcomes = []
    for outcome in _run(wanted, options, jobs):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(wanted))
    errors = [f"{each.job.kernel} for sm_{each.job.architecture}: {each.error}"
              for each in outcomes if each.error]  # fmt: skip
    if errors:
        raise RudaRuntimeError(
            f"[bundle] {len(errors)} of {len(wanted)} kernels do not compile:\n" + "\n".join(errors)
        )
    return _write(output, outcomes, list(architectures), list(packages), options)


def plan(architectures: Sequence[int], packages: Sequence[str], sample: bool) -> Iterator[Job]:
    """What a bundle contains: the ``bundle()`` lists of all ``launch.py``."""
    for package in packages:
        for family in families(package):
            if family.bundle is None:
                continue
            listed = [(kernel_of(each).name, each) for each in family.bundle()]
            for architecture in architectures:
                chosen = _sample(listed, architecture) if sample else listed
                yield from (Job(package, name, each, architecture) for name, each in chosen)


def _sample(
    listed: list[tuple[str, Specialisation]], architecture: int
) -> list[tuple[str, Specialisation]]:
    chosen = []
    for name in dict.fromkeys(name for name, _ in listed):
        own = [each for other, each in listed if other == name]
        half = [each for each in own if _uses_bf16(each)]
        first = [each for each in own if not _uses_bf16(each)]
        chosen += [(name, each) for each in half[:1]]
        if not half or architecture < _FIRST_BF16:
            chosen += [(name, each) for each in first[:1]]
    return chosen


def _uses_bf16(wanted: Specialisation) -> bool:
    return any("bf16" in kind for _, kind in wanted.signature)


def _run(wanted: list[Job], options: CompileOptions, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from (_compile(job, options) for job in wanted)
        return
    # Not forked: the compiler has threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(_compile, wanted, [options] * len(wanted), chunksize=4)


def _compile(job: Job, options: CompileOptions) -> Outcome:
    if _uses_bf16(job.wanted) and job.architecture < _FIRST_BF16:
        return Outcome(job, left_out="bfloat16 needs sm_80")
    try:
        kernel = kernel_of(job.wanted)
        artifact = obtain(kernel, job.wanted, job.architecture, options, None)
        source = kernel.source_hash(options)
    except RudaError as error:
        return Outcome(job, error=str(error))
    limit = _SHARED_MEMORY.get(job.architecture)
    if limit is not None and artifact.shared_bytes > limit:
        return Outcome(
            job, left_out=f"needs {artifact.shared_bytes} bytes of shared memory, has {limit}"
        )
    return Outcome(job, artifact, source)


def _write(
    output: Path,
    outcomes: list[Outcome],
    architectures: list[int],
    packages: list[str],
    options: CompileOptions,
) -> Report:
    report = Report(output, left_out=[each for each in outcomes if each.left_out])
    folder = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    (folder / "kernels").mkdir(parents=True)
    try:
        entries = []
        for each in outcomes:
            if each.artifact is None:
                continue
            entries.append(_entry(each, each.artifact))
            (folder / "kernels" / entries[-1]["file"]).write_bytes(each.artifact.image)
        report.compiled = len(entries)
        manifest = {
            "format": FORMAT,
            "abi": _native.abi_version,
            "api": dict(PROVIDES),
            "source_revision": _revision(),
            "packages": {package.replace("_", "-"): _version(package) for package in packages},
            "architectures": architectures,
            "compiler": triton_compiler.version(),
            "image": options.image_kind,
            "ptx_version": options.ptx_version,
            "kernels": entries,
            "left_out": [_left_out(each) for each in report.left_out],
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        (folder / "SHA256SUMS").write_text(checksums(folder))
        if output.exists():
            shutil.rmtree(output)
        folder.rename(output)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return report


def _entry(outcome: Outcome, artifact: Artifact) -> dict[str, Any]:
    return {
        "name": outcome.job.kernel,
        "function": outcome.job.wanted.function,
        "architecture": outcome.job.architecture,
        "signature": dict(outcome.job.wanted.signature),
        "specialisation": specialisation_key(outcome.job.wanted),
        "source": outcome.source,
        "file": f"{artifact.image_hash}.{artifact.kind}",
        "sha256": artifact.image_hash,
        "code": artifact.header(),
    }


def _left_out(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.job.kernel,
        "architecture": outcome.job.architecture,
        "specialisation": specialisation_key(outcome.job.wanted),
        "reason": outcome.left_out,
    }


def checksums(folder: Path) -> str:
    """The text of SHA256SUMS, in the format of ``sha256sum``."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "SHA256SUMS":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"{digest}  {path.relative_to(folder).as_posix()}\n")
    return "".join(lines)


def _version(package: str) -> str | None:
    module = importlib.import_module(package)
    return getattr(module, "__version__", None)


def _revision() -> str | None:
    """The commit of a source checkout."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
