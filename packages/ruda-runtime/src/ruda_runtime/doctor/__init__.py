"""A report on the installation: what a bug report needs, and what does not fit.

`ruda doctor` prints it; ``python -m ruda_runtime.doctor`` does the same without typer. The packages
are imported in a process of their own, so that a broken installation can be reported on as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ruda_runtime import inventory
from ruda_runtime.doctor import report as parts
from ruda_runtime.doctor.findings import find
from ruda_runtime.doctor.imports import probe
from ruda_runtime.doctor.text import as_text

__all__ = ["SCHEMA", "as_text", "collect"]

SCHEMA = 1
"""The number of the report's layout; it changes when a key goes away or changes its meaning."""


def collect(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The report, of JSON values only.

    Its keys are always the same ones; what is not known is ``None`` or empty. ``ok`` says that
    there are no findings; a finding has a ``code``, a ``message`` and an ``advice``.

    Args:
        environment: in place of ``os.environ``, for the report and for the process that imports.
    """
    given = dict(os.environ if environment is None else environment)
    present = [name for name in inventory.PACKAGES if inventory.package_folder(name)]
    imports = probe(present, given)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "system": parts.system(),
        "packages": parts.packages(imports),
        "abi": parts.abi(imports),
        "target": parts.target(imports, given),
        "driver": parts.driver(imports),
        "compilers": parts.compilers(given),
        "bundle": parts.bundle(imports, given),
        "caches": parts.caches(given),
        "torch": parts.torch(imports),
        "cpu": parts.cpu(imports),
        "settings": parts.variables(given),
    }
    report["findings"] = find(report, imports)
    report["ok"] = not report["findings"]
    return report
