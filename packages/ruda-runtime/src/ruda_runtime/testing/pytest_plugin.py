"""Take test files through a target.

    pytest -p ruda_runtime.testing.pytest_plugin --target double TESTS

``--target host`` and ``--target cuda`` set ``RUDA_TARGET`` before any test uses a device.
``--target double`` is the cuda target on the driver double, with the settings of ``RUDA_DOUBLE_*``;
a test during which the double found something fails with what it found, once all the work that the
test left in streams is done. A test that provokes a violation takes it with
``ruda_runtime.testing.clear_reports()``.

The file imports nothing of the package by itself, so that a ``conftest.py`` that loads it by its
path can still set the environment that ``ruda_runtime`` reads when it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any

import pytest

TARGETS = ("host", "double", "cuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ruda")
    group.addoption(
        "--target",
        choices=TARGETS,
        default=None,
        help="RUDA target of the tests: host, double (cuda on the driver double) or cuda",
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--target")
    if target is None:
        return
    os.environ["RUDA_TARGET"] = "host" if target == "host" else "cuda"
    if target == "double":
        os.environ["RUDA_CUDA_DRIVER"] = "double"
    else:
        os.environ.pop("RUDA_CUDA_DRIVER", None)


def pytest_report_header(config: pytest.Config) -> str | None:
    target = config.getoption("--target")
    return None if target is None else f"ruda target: {target}"


def pytest_collection(session: pytest.Session) -> None:
    # Behind the conftest files of the arguments, before the test files, which may use the driver.
    if session.config.getoption("--target") == "double":
        from ruda_runtime.testing import load_driver_double

        load_driver_double()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if item.config.getoption("--target") != "double":
        return (yield)
    from ruda_runtime import testing

    testing.clear_reports()
    try:
        result = yield
    finally:
        testing.wait()
        found = testing.reports()
        testing.clear_reports()
        if found:
            item.add_report_section("call", "driver double", "\n".join(found))
    if found:
        pytest.fail(f"the driver double found {len(found)} violations: {found[0]}", pytrace=False)
    return result


def leave_out_on_gpus(
    config: pytest.Config,
    items: list[pytest.Item],
    of_the_host: Callable[[pytest.Item], str | None],
    too_long: Callable[[pytest.Item], str | None],
) -> None:
    """Skip, with the reason that a function gives, what a package's tests leave out there.

    For a package's ``pytest_collection_modifyitems``. On the double its kernels are interpreted
    without being compiled; tests of their own compile them.

    Args:
        of_the_host: why a test says nothing about the cuda target, or ``None``.
        too_long: why a test is left to GPUs, since interpreting it takes too long, or ``None``.
    """
    target = config.getoption("--target", None)
    if target not in ("double", "cuda"):
        return
    if target == "double":
        from ruda_runtime.testing.uncompiled import launch_uncompiled

        launch_uncompiled()
    for item in items:
        if (reason := of_the_host(item)) is not None:
            item.add_marker(pytest.mark.skip(reason=f"host target: {reason}"))
        elif target == "double" and (reason := too_long(item)) is not None:
            item.add_marker(pytest.mark.skip(reason=f"driver double: {reason}"))
