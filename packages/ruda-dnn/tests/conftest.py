"""Memory handed out in these tests is poisoned: an element nobody wrote is NaN.

With `--target double` the files of the entries run on the driver double. It interprets kernels,
program by program, so that what is only large is left to the host target and to GPUs.
"""

import os
from pathlib import Path

import pytest

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")

HOST_FAMILIES = {"attention", "loss"}  # entries without device kernels behind them
LARGE_CASES = {"many", "many_rows"}
LARGE_TESTS = {
    "test_large_results_have_the_bits_of_their_rows",
    "test_select_allocates_only_what_is_asked_for",
}


def _left_out(item: pytest.Item) -> str | None:
    """Why a test does not run on the double."""
    name = getattr(item, "originalname", item.name)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if Path(item.path).name == "test_kernels.py":
        return "interprets kernels by itself, without a target"
    if Path(item.path).parent.name in HOST_FAMILIES:
        return "the entry has host kernels only"
    if name.endswith("number_of_threads"):
        return "about the host's threads"
    if name in LARGE_TESTS or getattr(parameters.get("case"), "name", None) in LARGE_CASES:
        return "large: minutes of interpretation"
    if name == "test_one_bad_value_is_found" and parameters["place"] != 16_384:
        return "one place, behind the first chunk, is enough to interpret"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--target", None) != "double":
        return
    for item in items:
        if (reason := _left_out(item)) is not None:
            item.add_marker(pytest.mark.skip(reason=f"driver double: {reason}"))
