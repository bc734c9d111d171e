"""The package's face: lazy names that exist, and a light import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ruda_finetune


def test_every_public_name_exists():
    for name in ruda_finetune.__all__:
        assert getattr(ruda_finetune, name) is not None
        assert name in dir(ruda_finetune)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ruda_finetune.__file__).read_text())
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    typed = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == ruda_finetune._EXPORTS


def test_import_is_light():
    code = (
        "import sys, threading, ruda_finetune; "
        "heavy = {'torch', 'transformers', 'peft', 'matplotlib', 'gguf'} & set(sys.modules); "
        "assert not heavy, heavy; assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_ruda_torch_is_refused_at_first_use():
    code = (
        "import ruda_runtime; "
        "ruda_runtime.check_abi('ruda-torch', '0.11.0', {'tensor': 11}, {}); "
        "import ruda_finetune; ruda_finetune.NF4Linear"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    for part in ("AbiMismatch", "ruda-finetune 0.10.", "ruda-torch 0.11.0", "pip install"):
        assert part in done.stderr


def test_errors_are_value_errors():
    for name in ruda_finetune.__all__:
        value = getattr(ruda_finetune, name)
        if name.endswith("Error"):
            assert issubclass(value, ruda_finetune.FinetuneError)
            assert issubclass(value, ValueError)
