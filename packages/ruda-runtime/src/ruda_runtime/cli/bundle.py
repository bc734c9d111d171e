"""The command `ruda bundle`: compiled kernels for machines without a compiler."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ruda_runtime.errors import RudaError

app = typer.Typer(
    help="Compile device kernels without a GPU, and look at what was compiled.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Path = Annotated[Path, typer.Argument(help="The folder of a bundle.")]


@app.command()
def build(
    output: Annotated[Path, typer.Option(help="The folder to write.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[ARCH]...", hidden=True)] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="ARCH...", help="sm_90, …; default: all that are built for."),
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option(help="Import name; default: all installed ones.")
    ] = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample", help="One specialisation of each kernel, in bfloat16 if it has that."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Compiling processes.")] = 1,
) -> None:
    """Compile every registered kernel: ruda bundle build --arch sm_80 sm_90 --output DIR"""
    from ruda_runtime.kernel import bundle_build
    from ruda_runtime.kernel.settings import ARCHITECTURES, parse_architecture

    shown = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if done == total or done >= shown + max(total // 20, 1):
            shown = done
            typer.echo(f"{done} of {total}", err=True)

    try:
        named = [*(arch or []), *(more or [])]
        wanted = [parse_architecture(each) for each in named] or list(ARCHITECTURES)
        report = bundle_build.build(
            output, list(dict.fromkeys(wanted)), packages=package or bundle_build.PACKAGES,
            sample=sample, jobs=jobs, progress=progress,
        )  # fmt: skip
    except RudaError as error:
        _fail(error)
    typer.echo(f"{report.path}: {report.compiled} kernels, {len(report.left_out)} left out")


@app.command()
def verify(path: _Path) -> None:
    """Check files and manifest; exits with 1 when something does not fit."""
    from ruda_runtime.kernel.bundle_verify import verify as find_problems

    problems = find_problems(path)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{path}: all files are as its manifest says")


@app.command("list")
def list_kernels(path: _Path) -> None:
    """Print what a bundle was built from, its kernels, and those left out."""
    from ruda_runtime.kernel.bundle_use import Bundle

    try:
        manifest = Bundle(path).manifest
    except RudaError as error:
        _fail(error)
    for name in ("compiler", "image", "ptx_version", "abi", "source_revision"):
        typer.echo(f"{name}: {manifest[name]}")
    for title, entries in (("kernels", manifest["kernels"]), ("left out", manifest["left_out"])):
        typer.echo(f"{title}:")
        counts = Counter((each["name"], each["architecture"], each.get("reason", ""))
                         for each in entries)  # fmt: skip
        for (name, architecture, reason), count in sorted(counts.items()):
            typer.echo(f"  {name}  sm_{architecture}  {count}" + (f"  {reason}" if reason else ""))


def _fail(error: RudaError) -> NoReturn:
    typer.echo(f"ruda: {error}", err=True)
    raise typer.Exit(1) from error


__all__ = ["app"]
