"""The version handshake: who provides what, and the text when it does not fit."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

import ruda_runtime as rr
from ruda_runtime import _abi, _native, abi


@pytest.fixture(autouse=True)
def registry() -> Iterator[dict[str, object]]:
    """Announcements of a test do not outlive it."""
    before = dict(abi._packages)
    yield abi._packages  # type: ignore[misc]
    abi._packages.clear()
    abi._packages.update(before)


def test_the_runtime_announces_itself() -> None:
    assert _abi.PROVIDES == {"tensor": 10} and _native.abi_version == 10
    assert abi._packages["ruda-runtime"].version == rr.__version__
    assert rr.__version__.startswith("0.10.")


def test_a_fitting_package_is_accepted() -> None:
    for _ in range(2):  # importing twice is no error
        rr.check_abi("ruda-new", "0.10.3", {"tensor": 10, "extra": 2},
                     {"ruda-runtime": {"tensor": 10}}, 10)  # fmt: skip
    rr.check_abi("ruda-pure", "0.10.0", {}, {"ruda-new": {"tensor": 10, "extra": 2}})


@pytest.mark.parametrize(
    ("interface", "number", "has"),
    [("tensor", 11, "provides tensor 10"), ("graph", 3, "does not provide it")],
)
def test_a_wrong_number_names_both_sides_and_the_repair(
    interface: str, number: int, has: str
) -> None:
    with pytest.raises(rr.AbiMismatch) as caught:
        rr.check_abi("ruda-new", "0.11.2", {"tensor": 11}, {"ruda-runtime": {interface: number}})
    text = str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert f"ruda-new 0.11.2 requires {interface} {number} of ruda-runtime" in text
    assert f"ruda-runtime {rr.__version__} {has}" in text
    assert ("Repair: python -m pip install --upgrade --force-reinstall 'ruda-new==0.11.*' "
            "'ruda-runtime==0.11.*'") in text  # fmt: skip
    assert "ruda-new" not in abi._packages


def test_a_native_module_of_another_abi() -> None:
    with pytest.raises(rr.AbiMismatch, match=r"compiled for tensor ABI 9, .* for ABI 10; two vers"):
        rr.check_abi("ruda-new", "0.10.0", {"tensor": 10}, {}, 9)


def test_a_missing_package() -> None:
    with pytest.raises(rr.AbiMismatch, match=r"needs ruda-absent, which is not installed. Repair"):
        rr.check_abi("ruda-new", "0.10.0", {}, {"ruda-absent": {"tensor": 10}})


def test_two_versions_in_one_process() -> None:
    rr.check_abi("ruda-new", "0.10.0", {}, {})
    with pytest.raises(rr.AbiMismatch, match=r"ruda-new 0.10.1 was imported after ruda-new 0.10.0"):
        rr.check_abi("ruda-new", "0.10.1", {}, {})


def test_a_package_below_is_imported_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = types.ModuleType("ruda_silent")
    monkeypatch.setitem(sys.modules, "ruda_silent", silent)
    with pytest.raises(rr.AbiMismatch, match="ruda-silent, whose import announced no ABI"):
        rr.check_abi("ruda-new", "0.10.0", {}, {"ruda-silent": {"tensor": 10}})


def test_an_import_error_inside_a_package_below_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> types.ModuleType:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(abi.importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        rr.check_abi("ruda-new", "0.10.0", {}, {"ruda-below": {"tensor": 10}})
