"""Memory handed out in these tests is poisoned: an element nobody wrote is NaN.

With `--target double` the files of the entries run on the driver double. It interprets kernels,
program by program, so that what is only large is left to the host target and to GPUs.
"""

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RUDA_POISON", "1")
os.environ.setdefault("RUDA_TARGET", "host")

LARGE_CASES = {"many", "many_rows", "one_finite_class", "large_vocabulary", "two_head_tiles"}
LARGE_TESTS = {
    "test_large_results_have_the_bits_of_their_rows",
    "test_select_allocates_only_what_is_asked_for",
    "test_memory_does_not_grow_with_the_square",
}
HOST_TESTS = {
    "test_labels_at_the_edges_of_head_tiles": "about the host's tiles of a head",
}
SLOW_CASES = {"wide_row", "wide_4097", "odd_width"}
SLOW_SCORES, LARGE_SCORES, LARGEST_SCORES = 3_000, 30_000, 200_000
SAMPLES: dict[str, dict[str, Any]] = {
    "test_one_bad_value_is_found": {"place": 16_384},
    "test_only_the_wanted_gradients": {"wanted": (True, False, False)},
    "test_layouts_give_the_bits_of_the_contiguous_copy": {"name": "decode", "layout": "slices"},
    "test_keys_that_are_not_seen_may_hold_anything": {"q_length": 1},
    "test_many_chunks_give_the_gradient_of_one": {"dtype": "bfloat16"},
}
"""Of these tests those runs are interpreted that have one of the values."""


def _scores(case: Any) -> int:
    """Elements of attention's scores; 0 for other families' cases."""
    if hasattr(case, "k_lengths"):
        return int(case.heads * sum(map(int.__mul__, case.q_lengths, case.k_lengths)))
    if not hasattr(case, "k_length"):
        return 0
    return int(case.batch * case.heads * case.q_length * case.k_length)


def _of_the_host(item: pytest.Item) -> str | None:
    """Why a test says nothing about the cuda target."""
    name = getattr(item, "originalname", item.name)
    file = Path(item.path).stem
    if file.endswith("_kernels"):
        return "interprets kernels by itself, without a target"
    if file in ("test_baseline", "test_device_launches"):
        return "starts a process with a target of its own"
    if name.endswith("number_of_threads"):
        return "about the host's threads"
    return HOST_TESTS.get(name)


def _left_out(item: pytest.Item) -> str | None:
    """Why a test is left to GPUs, or a sample of it is enough."""
    name = getattr(item, "originalname", item.name)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    case = parameters.get("case")
    large = name in LARGE_TESTS or getattr(case, "name", None) in LARGE_CASES
    if large or _scores(case) > LARGEST_SCORES:
        return "large: minutes of interpretation"
    if _scores(case) > LARGE_SCORES and parameters.get("dtype") != "bfloat16":
        return "large: interpreted in bfloat16 alone"
    slow = _scores(case) > SLOW_SCORES or getattr(case, "name", None) in SLOW_CASES
    if slow and parameters.get("dtype") == "float16":
        return "slow to interpret: in the other dtypes"
    wanted = SAMPLES.get(name, {})
    if (
        wanted
        and wanted.keys() <= parameters.keys()
        and not any(parameters[each] == value for each, value in wanted.items())
    ):
        return "slow to interpret: a sample is enough"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from ruda_runtime.testing.pytest_plugin import leave_out_on_gpus  # reads the environment above

    leave_out_on_gpus(config, items, _of_the_host, _left_out)
