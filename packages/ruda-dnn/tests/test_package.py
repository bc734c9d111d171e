"""What importing the package does, and the names it gives."""

from __future__ import annotations

import subprocess
import sys

import ruda_dnn
import ruda_runtime

KERNELS = {
    "attention.forward",
    "attention.backward",
    "rms_norm.forward",
    "rms_norm.backward",
    "silu_mul.forward",
    "silu_mul.backward",
    "linear_cross_entropy.forward",
    "layer_norm.forward",
    "layer_norm.backward",
    "softmax.forward",
    "softmax.backward",
    "rotary.forward",
    "rotary.backward",
    "adamw.step",
    "gradient.unscale",
    "gradient.norm",
}


def test_public_names_exist_and_have_docstrings() -> None:
    for name in ruda_dnn.__all__:
        value = getattr(ruda_dnn, name)
        assert name == "__version__" or value.__doc__, name


def test_kernels_are_registered() -> None:
    names = {kernel.name for kernel in ruda_runtime.kernels() if kernel.package == "ruda-dnn"}
    assert names == KERNELS


def test_native_module_carries_the_abi() -> None:
    assert ruda_dnn._native.abi_version == ruda_dnn.PROVIDES["tensor"] == 10


def test_import_starts_no_thread_and_no_torch() -> None:
    code = (
        "import os, sys, numpy\n"  # NumPy's own BLAS starts threads
        "before = len(os.listdir('/proc/self/task'))\n"
        "import ruda_dnn\n"
        "assert len(os.listdir('/proc/self/task')) == before\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
