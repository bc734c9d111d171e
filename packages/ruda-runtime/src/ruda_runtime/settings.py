"""Every RUDA_* environment variable that a RUDA package reads, in one table.

The table is what `ruda doctor` checks the environment against, and what the tests compare with the
sources: a variable that is read somewhere has its entry here. The code that reads a variable still
checks it itself. This module imports nothing of the runtime, so that it can be used where the
runtime cannot be imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SETTINGS", "Setting", "find", "problems", "read"]


@dataclass(frozen=True)
class Setting:
    """One environment variable. An empty value counts as absent.

    Attributes:
        name: the variable.
        package: the distribution that reads it; ``"checkout"`` for the tools of a source checkout.
        meaning: one sentence.
        choices: the allowed values; empty where ``allowed`` says it.
        low, high: bounds of a whole number; ``None`` for other values.
        path: ``"file"`` or ``"any"`` where the value is a path that must exist, else ``""``.
        pattern: a regular expression for the whole value.
        text: what such or other values look like, for people.
    """

    name: str
    package: str
    meaning: str
    choices: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    path: str = ""
    pattern: str = ""
    text: str = ""

    @property
    def allowed(self) -> str:
        """The allowed values, for people."""
        if self.choices:
            return " or ".join(repr(choice) for choice in self.choices)
        if self.low is not None:
            top = "or more" if self.high is None else f"to {self.high}"
            return f"a whole number, {self.low} {top}"
        if self.path:
            return "the path of a file" if self.path == "file" else "a path that exists"
        return self.text

    def problem(self, value: str) -> str | None:
        """What is wrong with a value, or ``None``."""
        if not value:
            return None
        if self.choices:
            right = value in self.choices
        elif self.low is not None:
            number = int(value) if value.isascii() and value.isdigit() else -1
            right = number >= self.low and (self.high is None or number <= self.high)
        elif self.path:
            place = Path(value).expanduser()
            right = place.is_file() if self.path == "file" else place.exists()
        else:
            right = re.fullmatch(self.pattern or ".*", value, re.DOTALL) is not None
        return None if right else f"[{self.name}] got {value!r}, wanted {self.allowed}"


_FLAG = ("0", "1")
_RUNTIME, _TORCH, _FINETUNE = "ruda-runtime", "ruda-torch", "ruda-finetune"

SETTINGS: tuple[Setting, ...] = (
    Setting("RUDA_TARGET", _RUNTIME, "where kernels run", ("auto", "host", "cuda")),
    Setting("RUDA_NUM_THREADS", _RUNTIME, "threads of the pool", low=1, high=1024),
    Setting("RUDA_CPU", _RUNTIME, "instructions of host kernels", ("auto", "baseline")),
    Setting("RUDA_MEMORY_LIMIT", _RUNTIME, "bytes the pool may take", low=1, high=2**63 - 1),
    Setting("RUDA_POISON", _RUNTIME, "fill memory with NaN, for tests", _FLAG),
    Setting("RUDA_MAX_STREAMS", _RUNTIME, "streams beside the default one", low=1, high=1024),
    Setting("RUDA_ASYNC", _RUNTIME, "queue launches", _FLAG),
    Setting("RUDA_CACHE_DIR", _RUNTIME, "the folder of every cache", text="a folder"),
    Setting("RUDA_AUTOTUNE", _RUNTIME, "mode of tuning", ("explore", "cache_only", "disabled")),
    Setting("RUDA_AUTOTUNE_DRIVER_TAG", _RUNTIME, "added to tuning keys", text="any text"),
    Setting("RUDA_AUTOTUNE_BUILD_TAG", _RUNTIME, "added to tuning keys", text="any text"),
    Setting("RUDA_AUTOTUNE_CONTEXT_TAG", _RUNTIME, "added to tuning keys", text="any text"),
    Setting("RUDA_BUNDLE", _RUNTIME, "compiled device kernels", text="the folder of a bundle"),
    Setting("RUDA_CUDA_COMPILER", _RUNTIME, "what kernels become", ("cubin", "ptx", "nvrtc")),
    Setting("RUDA_CUDA_DRIVER", _RUNTIME, "the driver's double, for tests", ("double",)),
    Setting("RUDA_DOUBLE_DEVICES", _RUNTIME, "GPUs of the double", low=0, high=8),
    Setting(
        "RUDA_DOUBLE_COMPUTE_CAPABILITY",
        _RUNTIME,
        "what the double's GPUs are",
        pattern=r"\d+\.\d",
        text="MAJOR.MINOR, for example 9.0",
    ),
    Setting("RUDA_DOUBLE_MEMORY", _RUNTIME, "bytes of one GPU", low=1 << 20, high=64 << 30),
    Setting("RUDA_DOUBLE_DRIVER_VERSION", _RUNTIME, "as 13040", low=11020, high=99990),
    Setting("RUDA_DOUBLE_RECORD_ONLY", _RUNTIME, "check launches, run none", _FLAG),
    Setting("RUDA_DOUBLE_SEED", _RUNTIME, "of order and delays", low=0, high=2**64 - 1),
    Setting("RUDA_DOUBLE_DELAY_US", _RUNTIME, "longest pause before work", low=0, high=1_000_000),
    Setting("RUDA_DOUBLE_SHUFFLE", _RUNTIME, "run programs in random order", _FLAG),
    Setting("RUDA_DOUBLE_LEAKS", _RUNTIME, "report what is left at exit", _FLAG),
    Setting("RUDA_DOUBLE_ARENA", _RUNTIME, "address of device memory", low=1 << 20, high=1 << 47),
    Setting("RUDA_DOUBLE_PYTHON", _RUNTIME, "interpreter of the server", text="a program"),
    Setting("RUDA_DOUBLE_PYTHONPATH", _RUNTIME, "module path of the server", text="folders"),
    Setting(
        "RUDA_PTX_VERSION",
        _RUNTIME,
        "the PTX of compiled kernels",
        pattern=r"[1-9]\d?\.\d",
        text="MAJOR.MINOR, for example 8.0",
    ),
    Setting("RUDA_TORCH_ASYNC", _TORCH, "queue RUDA's own kernels", _FLAG),
    Setting("RUDA_TORCH_LIBRARY", _TORCH, "another build of the native module", path="file"),
    Setting("RUDA_QUICK_IMPORT", _FINETUNE, "leave unused parts of torch out", _FLAG),
    Setting("RUDA_TORCH_REQUIREMENT", "checkout", "torch of the nox sessions", text="torch==…"),
    Setting("RUDA_WHEELHOUSE", "checkout", "wheels that the tests install", text="a folder"),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def find(name: str) -> Setting | None:
    """The setting of that name."""
    return _BY_NAME.get(name)


def read(name: str, environment: Mapping[str, str]) -> str:
    """The value of a setting in ``environment``, ``""`` where it is absent.

    Raises:
        ValueError: a value that is not allowed; the text names the variable and the allowed ones.
    """
    value = environment.get(name, "")
    problem = _BY_NAME[name].problem(value)
    if problem:
        raise ValueError(problem)
    return value


def problems(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Everything wrong with the RUDA_* variables of ``environment``: (variable, sentence)."""
    found = []
    for name in sorted(environment):
        if not name.startswith("RUDA_"):
            continue
        setting = find(name)
        if setting is None:
            found.append((name, f"[{name}] no RUDA package reads this variable{_nearest(name)}"))
        elif problem := setting.problem(environment[name]):
            found.append((name, problem))
    own, below = environment.get("RUDA_TORCH_ASYNC", ""), environment.get("RUDA_ASYNC", "")
    if own and below and own != below:
        text = f"[RUDA_TORCH_ASYNC] got {own!r} while RUDA_ASYNC is {below!r}, wanted one value"
        found.append(("RUDA_TORCH_ASYNC", text))
    return found


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""
