"""Requirements of the wheel that depend on what it is built with.

torch's C++ interface holds within one minor version, so a wheel requires exactly the minor that was
in the build environment; the sibling packages carry their ABI in the version number.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

SIBLINGS = ("ruda-runtime", "ruda-blas", "ruda-dnn")
SIBLING_VERSIONS = ">=0.10.0,<0.11"


class RequirementsHook(MetadataHookInterface):
    """Fills in `project.dependencies`."""

    def update(self, metadata: dict[str, Any]) -> None:
        version = importlib.metadata.version("torch").split("+")[0]
        minor = ".".join(version.split(".")[:2])
        metadata["dependencies"] = [
            f"torch=={minor}.*",
            *(f"{name}{SIBLING_VERSIONS}" for name in SIBLINGS),
        ]
