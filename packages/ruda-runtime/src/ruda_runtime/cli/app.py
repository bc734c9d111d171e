"""The application behind `ruda`."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from ruda_runtime import doctor as doctor_report
from ruda_runtime._version import __version__

app = typer.Typer(
    help="Tools of the RUDA runtime.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ruda-runtime {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Report on the installation and what does not fit.

    Packages and versions, the ABI table, the target and why, GPU and driver, compilers, caches and
    bundle, torch's build, the CPU and the settings: what a bug report needs. Exits with 1 when
    there are findings.
    """
    report = doctor_report.collect()
    typer.echo(json.dumps(report, indent=2) if as_json else doctor_report.as_text(report))
    raise typer.Exit(0 if report["ok"] else 1)


def _add_bundle() -> None:
    # Where the runtime itself could not be imported, there is only the doctor.
    whole = hasattr(sys.modules["ruda_runtime"], "__version__")
    if whole and find_spec("ruda_runtime.cli.bundle") is not None:
        bundle = importlib.import_module("ruda_runtime.cli.bundle")
        app.add_typer(bundle.app, name="bundle")


_add_bundle()
