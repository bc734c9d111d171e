"""The explicit list: what is in it, what is never in it, and that it is the installed torch's."""

from __future__ import annotations

import subprocess
import sys

import torch

from ruda_torch import _native

from .support import TOOLS, tool

OPERATORS = _native.host_operators()


def schema_of(name: str) -> torch._C.FunctionSchema:
    base, _, overload = name.partition(".")
    return torch._C._get_schema(f"aten::{base}", overload)


def test_list_is_the_one_of_the_installed_torch() -> None:
    generator = tool("host_operators")
    assert generator.LIST.read_text() == generator.render()
    assert [name for name, _ in generator.host_operators()] == OPERATORS
    readme = (TOOLS.parent / "README.md").read_text()
    assert f"| {len(OPERATORS)} further overloads |" in readme


def test_script_reports_an_outdated_list(tmp_path, monkeypatch, capsys) -> None:
    generator = tool("host_operators")
    other = tmp_path / "host_operators.inc"
    other.write_text(generator.LIST.read_text().replace('"index.Tensor"', '"sub.Scalar"'))
    monkeypatch.setattr(generator, "LIST", other)
    monkeypatch.setattr(sys, "argv", ["host_operators.py", "--check"])
    assert generator.main() == 1
    assert "out of date" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["host_operators.py"])
    assert generator.main() == 0
    assert '"index.Tensor"' in other.read_text()


def test_script_runs_by_itself() -> None:
    script = TOOLS / "host_operators.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=120)


def test_size_and_families() -> None:
    assert len(OPERATORS) >= 300
    assert len(set(OPERATORS)) == len(OPERATORS)
    for name in [
        "index.Tensor",
        "_index_put_impl_", "scatter_add_", "sort.stable", "topk", "stack", "embedding",
        "_amp_update_scale_", "max_pool2d_with_indices",
        "embedding_dense_backward", "_softmax.out", "_log_softmax_backward_data.out",
        "native_group_norm", "native_group_norm_backward", "native_batch_norm",
        "gelu", "gelu_backward",
        "masked_fill_.Scalar", "masked_select", "cumsum", "tril", "linalg_qr",
        "_foreach_add_.List", "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "nll_loss_forward",
        "_amp_foreach_non_finite_check_and_unscale_", "upsample_bilinear2d",
        "arange.start_out", "nonzero", "_unique2", "repeat_interleave.Tensor",
    ]:  # fmt: skip
        assert name in OPERATORS, name


def faults_of(name: str) -> list[str]:
    schema = schema_of(name)
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload or "default")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    results = schema.returns
    return [
        text
        for wrong, text in [
            (not has(f"aten::{name}", "PrivateUse1"), "has no kernel"),
            (has(f"aten::{name}", "CompositeImplicitAutograd"), "is composite-implicit"),
            (any(r.alias_info and not r.alias_info.is_write for r in results), "returns a view"),
            (torch.Tag.inplace_view in operator.tags, "changes a geometry in place"),
            (torch.Tag.nondeterministic_seeded in operator.tags, "is random"),
            (any("Generator" in str(a.type) for a in schema.arguments), "takes a generator"),
        ]
        if wrong
    ]


def test_listed_operators_are_neither_views_nor_random_nor_composite() -> None:
    assert {name: faults for name in OPERATORS if (faults := faults_of(name))} == {}


def test_stub_route_has_kernels_and_is_not_listed() -> None:
    names = tool("host_operators").stub_route()
    assert len(names) == 141 and not set(names) & set(OPERATORS)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [name for name in names if not has(f"aten::{name}", "PrivateUse1")] == []


def test_the_faults_are_found() -> None:
    assert "returns a view" in faults_of("view")
    assert "is random" in faults_of("normal_") and "takes a generator" in faults_of("normal_")
    assert "is composite-implicit" in faults_of("matmul")
    assert "has no kernel" in faults_of("_to_sparse")
    assert "changes a geometry in place" in faults_of("t_")
