"""Build the native modules in place, for work from a source checkout.

    python tools/develop.py              # all packages, in dependency order
    python tools/develop.py runtime dnn  # some of them

Each module is configured with plain CMake in build/<package> and installed beside its Python
sources; the packages' `src` folders are written to a .pth file of the running interpreter. Needs
cmake, ninja, pybind11 and (for ruda-blas, unless --without-openblas) scipy-openblas32; ruda-torch
needs torch.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDER = ["runtime", "blas", "dnn", "torch", "finetune"]


def package_dir(name: str) -> Path:
    return ROOT / "packages" / f"ruda-{name}"


def write_path_file() -> None:
    """Make the packages importable by this interpreter."""
    target = Path(sysconfig.get_paths()["purelib"]) / "ruda-develop.pth"
    target.write_text("".join(f"{package_dir(name) / 'src'}\n" for name in ORDER))


def build(name: str, jobs: int, extra: list[str]) -> None:
    source = package_dir(name)
    if not (source / "CMakeLists.txt").exists():
        return
    import pybind11

    binary = ROOT / "build" / f"ruda-{name}"
    roots = [
        f"-Druda_{below}_ROOT={package_dir(below) / 'src' / f'ruda_{below}' / 'cmake'}"
        for below in ORDER[: ORDER.index(name)]
    ]
    configure = [
        "cmake",
        "-S",
        str(source),
        "-B",
        str(binary),
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        *roots,
        *extra,
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(binary), "-j", str(jobs)], check=True)
    subprocess.run(
        ["cmake", "--install", str(binary), "--prefix", str(source / "src")],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", choices=[[], *ORDER], default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--define",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a CMake definition, for example CMAKE_BUILD_TYPE=Debug",
    )
    parser.add_argument(
        "--without-openblas",
        action="store_true",
        help="plain loops in its place: right, slow; for machines without scipy-openblas32",
    )
    parser.add_argument(
        "--no-path-file", action="store_true", help="leave the interpreter alone: PYTHONPATH is set"
    )
    arguments = parser.parse_args()
    if not arguments.no_path_file:
        write_path_file()
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / ".lock").open("w") as lock:  # one build at a time in a checkout
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in ORDER:
            if not arguments.packages or name in arguments.packages:
                extra = [f"-D{item}" for item in arguments.define]
                if name == "blas":
                    openblas = "OFF" if arguments.without_openblas else "ON"
                    extra.append(f"-DRUDA_BLAS_OPENBLAS={openblas}")
                build(name, arguments.jobs, extra)


if __name__ == "__main__":
    main()
