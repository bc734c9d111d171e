"""The harness of ruda-dnn's kernel tests, from the same checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).resolve().parents[2] / "ruda-dnn" / "tests" / "kernels_support.py"
_NAME = "ruda_kernels_support"

if _NAME not in sys.modules:
    _SPEC = importlib.util.spec_from_file_location(_NAME, _PATH)
    assert _SPEC is not None and _SPEC.loader is not None
    sys.modules[_NAME] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(sys.modules[_NAME])

_support = sys.modules[_NAME]
DTYPES = _support.DTYPES
Interpreter = _support.Interpreter
check = _support.check
compile_tests = _support.compile_tests
interpreter_fixture = _support.interpreter_fixture
