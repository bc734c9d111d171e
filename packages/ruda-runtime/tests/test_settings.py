"""The table of settings is what the sources read, and its checks are the readers' checks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ruda_runtime import settings

ROOT = Path(__file__).resolve().parents[3]
QUOTED = re.compile(r"""["'](RUDA_[A-Z0-9_]*[A-Z0-9])["']""")


def read_by_the_sources() -> set[str]:
    """Every quoted RUDA_ name in the packages and the checkout's tools, but for the table's own."""
    names = set()
    places = [*ROOT.glob("packages/*/src"), *ROOT.glob("packages/*/csrc"), ROOT / "tools",
              ROOT / "packages" / "ruda-runtime" / "double"]  # fmt: skip
    files = [path for place in places for path in place.rglob("*")]
    for path in [*files, ROOT / "noxfile.py", *(ROOT / "tests-integration").glob("*.py")]:
        own = path.name == "settings.py" and path.parent.name == "ruda_runtime"
        if path.suffix in {".py", ".cpp", ".hpp", ".h"} and not own:
            names |= set(QUOTED.findall(path.read_text(encoding="utf-8")))
    return names


def test_the_table_is_what_the_sources_read() -> None:
    known = {setting.name for setting in settings.SETTINGS}
    assert len(known) == len(settings.SETTINGS)
    read = read_by_the_sources()
    assert read - known == set(), "add an entry to ruda_runtime/settings.py"
    assert known - read == set(), "nobody reads these"


def test_every_setting_says_what_it_takes() -> None:
    for setting in settings.SETTINGS:
        assert setting.meaning and setting.allowed, setting.name
        assert (setting.low is None) == (setting.high is None), setting.name


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("RUDA_TARGET", ["host", "cuda", "auto"], ["gpu", "Host", " host"]),
        ("RUDA_NUM_THREADS", ["1", "1024", "007"], ["0", "1025", "-1", "2.5", "two", " 2", "²"]),
        ("RUDA_MEMORY_LIMIT", ["1", str(2**63 - 1)], ["0", "4GB", str(2**63)]),
        ("RUDA_ASYNC", ["0", "1"], ["2", "yes", "01"]),
        ("RUDA_AUTOTUNE", ["explore", "cache_only", "disabled"], ["1", "cache-only"]),
        ("RUDA_DOUBLE_COMPUTE_CAPABILITY", ["9.0", "12.0"], ["90", "9", "sm_90"]),
        ("RUDA_AUTOTUNE_BUILD_TAG", ["anything", "two\nlines"], []),
    ],
)
def test_values(name: str, right: list[str], wrong: list[str]) -> None:
    setting = settings.find(name)
    assert setting is not None
    for value in ["", *right]:
        assert setting.problem(value) is None, value
        assert settings.problems({name: value}) == []
    for value in wrong:
        text = f"[{name}] got {value!r}, wanted {setting.allowed}"
        assert setting.problem(value) == text
        assert settings.problems({name: value}) == [(name, text)]


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(b"")
    setting = settings.find("RUDA_TORCH_LIBRARY")
    assert setting is not None
    assert setting.problem(str(tmp_path / "library.so")) is None
    assert "wanted the path of a file" in str(setting.problem(str(tmp_path)))


def test_unknown_names_and_contradictions() -> None:
    environment = {"RUDA_NUM_THREAD": "2", "RUDA_XYZ": "", "HOME": "/", "rUDA_X": "1"}
    assert settings.problems(environment) == [
        (
            "RUDA_NUM_THREAD",
            "[RUDA_NUM_THREAD] no RUDA package reads this variable; did you mean RUDA_NUM_THREADS?",
        ),
        ("RUDA_XYZ", "[RUDA_XYZ] no RUDA package reads this variable"),
    ]
    both = {"RUDA_ASYNC": "0", "RUDA_TORCH_ASYNC": "1"}
    ((name, text),) = settings.problems(both)
    assert name == "RUDA_TORCH_ASYNC" and "while RUDA_ASYNC is '0'" in text
    assert settings.problems({"RUDA_ASYNC": "1", "RUDA_TORCH_ASYNC": "1"}) == []


@pytest.mark.parametrize(
    "name",
    ["RUDA_NUM_THREADS", "RUDA_CPU", "RUDA_MEMORY_LIMIT", "RUDA_POISON", "RUDA_ASYNC",
     "RUDA_MAX_STREAMS", "RUDA_TARGET"],
)  # fmt: skip
def test_the_reader_agrees(python: Callable[..., subprocess.CompletedProcess[str]],
                           name: str) -> None:  # fmt: skip
    setting = settings.find(name)
    assert setting is not None
    bounds = [str(n) for n in (setting.low, setting.high) if n is not None]
    code = "import ruda_runtime; ruda_runtime.devices()"
    for value in [*setting.choices, *bounds, "nonsense", "0", "1025"]:
        if value in ("cuda", "auto"):
            continue  # whether it can be served is another question
        environment = {"RUDA_TARGET": "host", name: value}
        done = python(code, **environment)
        assert (done.returncode == 0) == (setting.problem(value) is None), (value, done.stderr)
        if done.returncode:
            assert f"RudaValueError: [{name}] got '{value}'" in done.stderr
