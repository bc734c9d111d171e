"""A user installs one layer: its wheel, what is below it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from environments import ORDER, Environment, wheel_of

RUNTIME = """
import numpy as np, ruda_runtime
t = ruda_runtime.Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
assert t.permute(1, 0).contiguous().numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
assert ruda_runtime.devices()[0].target == "host"
"""
BLAS = """
import numpy as np, ruda_runtime
from ruda_blas import gemm, nf4
rng = np.random.default_rng(0)
a, b = rng.standard_normal((5, 7)).astype("f"), rng.standard_normal((7, 3)).astype("f")
T = ruda_runtime.Tensor.from_numpy
np.testing.assert_allclose(gemm.matmul(T(a), T(b)).numpy(), a @ b, rtol=1e-5, atol=1e-5)
packed, scales = nf4.quantize(T(rng.standard_normal((4, 64)).astype("f")))
assert packed.numpy().size == 128 and scales.numpy().size == 4
"""
DNN = """
import numpy as np, ruda_runtime, ruda_dnn
x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
T = ruda_runtime.Tensor.from_numpy
y = ruda_dnn.rms_norm(T(x), T(np.ones(4, dtype=np.float32)), 1e-6).numpy()
np.testing.assert_allclose(y, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), rtol=1e-6)
"""
TORCH = """
import torch, ruda_torch
w = torch.nn.Parameter(torch.ones(8, device="ruda:0"))
x = torch.randn(4, 8, device="ruda:0", requires_grad=True)
ruda_torch.rms_norm(x, w, 1e-6).square().sum().backward()
assert x.grad.device.type == "ruda" and torch.isfinite(w.grad.cpu()).all()
"""
AUTOLOAD = """
import sys, torch
assert "ruda_torch" in sys.modules, "the torch.backends entry point did not load the device"
print(torch.ones(2, device="ruda").sum().item())
"""
FINETUNE = """
import torch, ruda_finetune
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                     num_attention_heads=4, num_key_value_heads=2, vocab_size=100)
model = LlamaForCausalLM(config)
ruda_finetune.quantize_nf4(model, "all-linear")
ruda_finetune.inject_lora(model, "all-linear", rank=4)
model.to("ruda:0")
ids = torch.randint(0, 100, (1, 8)).to("ruda:0")
model(input_ids=ids, labels=ids).loss.backward()
assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
"""
SMOKE = dict(zip(ORDER, [RUNTIME, BLAS, DNN, TORCH, FINETUNE]))


@pytest.mark.parametrize("top", ORDER)
def test_subset(top: str, wheelhouse: Path, new_environment: Callable[[str], Environment]) -> None:
    environment = new_environment(top)
    if top in ("ruda-torch", "ruda-finetune"):
        environment.install("torch==2.13.0")
    environment.install(str(wheel_of(wheelhouse, top)))
    below = ORDER[: ORDER.index(top) + 1]
    for package in below:
        environment.check(SMOKE[package])
    absent = [name.replace("-", "_") for name in ORDER[len(below) :]]
    found = environment.check(
        f"import importlib.util as u; print([n for n in {absent} if u.find_spec(n)])"
    )
    assert found.strip() == "[]", "a package above was installed too"
    if top in ("ruda-runtime", "ruda-blas", "ruda-dnn"):
        assert environment.run("import torch").returncode != 0, "torch must not be a requirement"
    if top == "ruda-torch":
        assert environment.check(AUTOLOAD).strip() == "2.0"
        assert environment.run(AUTOLOAD, TORCH_DEVICE_BACKEND_AUTOLOAD="0").returncode != 0
    if top == "ruda-finetune":
        script = environment.root / "bin" / "ruda-finetune"
        assert script.exists()
        assert "train" in environment.check(
            f"import subprocess; print(subprocess.check_output(['{script}', '--help'], text=True))"
        )


def test_wheels_hold_no_sources_and_no_foreign_paths(wheelhouse: Path) -> None:
    """Native modules only, found by $ORIGIN; no .cpp, no build folder's path as a search path."""
    import zipfile

    for package in ORDER:
        with zipfile.ZipFile(wheel_of(wheelhouse, package)) as archive:
            names = archive.namelist()
            assert not [n for n in names if n.endswith((".cpp", ".o", ".a"))], package
            assert any(n.endswith("py.typed") for n in names), package
            assert any("licenses/LICENSE" in n for n in names), package
            native = [n for n in names if ".so" in n]
            assert bool(native) == (package != "ruda-finetune"), (package, native)
            for name in native:
                search = run_path(archive.read(name))
                assert all(part.startswith("$ORIGIN") for part in search), (name, search)


def run_path(library: bytes) -> list[str]:
    """DT_RPATH and DT_RUNPATH of an ELF file."""
    import io

    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    parts: list[str] = []
    for section in ELFFile(io.BytesIO(library)).iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    text = tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath
                    parts += [part for part in text.split(":") if part]
    return parts
