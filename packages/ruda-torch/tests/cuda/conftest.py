"""These files are about the cuda target: they run on a GPU with `--target cuda`, and on the driver
double with `-p ruda_runtime.testing.pytest_plugin --target double`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    target = config.getoption("--target", None)
    here = [item for item in items if HERE in Path(item.path).parents]
    if target == "double" and here:
        from ruda_runtime.testing.uncompiled import launch_uncompiled

        launch_uncompiled()  # kernels are compiled by their own tests, in the packages below
    if target not in ("double", "cuda"):
        for item in here:
            item.add_marker(pytest.mark.skip(reason="needs the cuda target: --target double"))
