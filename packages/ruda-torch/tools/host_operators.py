"""Write the list of operators that the host target serves through ATen's CPU kernels.

    python packages/ruda-torch/tools/host_operators.py            # rewrite the committed list
    python packages/ruda-torch/tools/host_operators.py --check    # exit 1 when it is out of date

The list is read from the operator declarations inside the installed torch wheel: every overload
that has a kernel of its own for CPU, and the composite ones in COMPOSITES that are worth one
dispatch instead of several. Never listed: views, random operators, operators with a
composite-implicit kernel, operators with a kernel elsewhere (ELSEWHERE, STUB_ROUTE) and
storage-layout families that a dense device has no use for (REFUSED). An operator that is in no list
raises NotImplementedError on the device.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

LIST = Path(__file__).resolve().parent.parent / "src/ruda_torch/data/host_operators.inc"

# Storage layouts, other libraries' formats, operators of torch's own tests, and operators that make
# tensors on a device: ruda-torch's core has its own for the last.
REFUSED = [
    r"_test_.*",
    r"_foobar",
    r"_make_dep_token",
    r".*quantize.*",
    r"_make_per_.*",
    r"_fused_moving_avg_obs_fq_helper",
    r".*mkldnn.*",
    r"_to_sparse.*",
    r"_spdiags",
    r"sspaddmm",
    r"_validate_compressed_sparse_indices",
    r"_convert_indices_.*",
    r"_nested_.*",
    r"_jagged_to_padded_dense_forward",
    r"_padded_dense_to_jagged_forward",
    r"_convert_weight_to_int4pack_for_cpu",
    r"_weight_int4pack_mm_for_cpu",
    r"_weight_int8pack_mm",
    r"_dyn_quant_.*",
    r"_slow_conv.*",
    r"slow_conv.*",
    r"_scaled_dot_product_.*",
    r"_empty_.*",
    r"empty",
    r"empty_strided",
    r"from_file",
    r"_efficientzerotensor",
]

# Served elsewhere: kernels of ruda-torch's own (the device core, matrix products), and a composite
# kernel with better checks than the CPU's.
ELSEWHERE = {
    "narrow_copy",
    "_local_scalar_dense",
    "mm",
    "mm.out",
    "bmm",
    "bmm.out",
    "addmm",
    "addmm_",
    "addmm.out",
    "baddbmm",
    "baddbmm_",
    "baddbmm.out",
    "_softmax",
    "_softmax_backward_data",
    "_log_softmax",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
}

# The hot operators: csrc/ops/stub_*.cpp run ATen's structured kernels on the tensors themselves.
STUB_ROUTE = [
    r"(ceil|cos|erf|exp|expm1|floor|log|log1p|log2|neg|reciprocal|round|rsqrt|sigmoid|silu|sin"
    r"|sqrt|tanh|bitwise_not)(_|\.out)?",
    r"(add|sub|mul|div)(_?\.Tensor|\.out)",
    r"bitwise_(and|or|xor)(_?\.Tensor|\.Tensor_out)",
    r"pow\.Tensor_(Tensor(_out)?|Scalar)",
    r"pow_\.(Tensor|Scalar)",
    r"(maximum|minimum)(\.out)?",
    r"(sigmoid|tanh)_backward(\.grad_input)?",
    r"(eq|ne|lt|le|gt|ge)\.(Tensor|Tensor_out|Scalar)",
    r"(addcmul|addcdiv)(_|\.out)?",
    r"lerp_?\.Scalar",
    r"where\.self",
    r"(clamp|clamp_min|relu)_?",
    r"threshold_backward",
    r"sum(\.dim_IntList|\.IntList_out)?",
    r"mean(\.dim)?",
    r"(amax|amin)(\.out)?",
    r"(any|all)(\.dim)?",
    r"fill_\.Scalar",
    r"zero_",
    r"cat",
]

# Composite-explicit operators that would otherwise decompose into several dispatches on the device.
# `_foreach_copy_`, `_foreach_copy` and `_foreach_clone` are left out: they may cross devices.
COMPOSITES = [
    r"abs_?",
    r"_?conj_physical",
    r"conj_physical_",
    r"logical_(not|and|or|xor)_?",
    r"isinf",
    r"nan_to_num_?",
    r"constant_pad_nd",
    r"cum(max|min)(\.out)?",
    r"count_nonzero",
    r"(select|slice|diagonal)_backward",
    r"embedding",
    r"index_put",
    r"_unsafe_index\.Tensor",
    r"_unsafe_index_put",
    r"_unsafe_masked_index",
    r"_unsafe_masked_index_put_accumulate",
    r"kthvalue",
    r"logcumsumexp(\.out)?",
    r"logsumexp",
    r"(mean|sum)",
    r"(median|nanmedian)\.dim",
    r"mode\.values",
    r"mv(\.out)?",
    r"mvlgamma_?",
    r"polygamma_",
    r"repeat",
    r"celu_?",
    r"stack(\.out)?",
    r"_chunk_cat(\.out)?",
    r"block_diag",
    r"rot90",
    r"norm\..*",
    r"frexp\.Tensor",
    r"complex",
    r"polar",
    r"masked_fill\..*",
    r"masked_scatter",
    r"masked_scatter_backward",
    r"put",
    r"index_fill\..*",
    r"dist",
    r"sort",
    r"sort\.values",
    r"(smooth_l1|huber)_loss_backward",
    r"soft_margin_loss.*",
    r"rrelu_with_noise_backward",
    r"binary_cross_entropy_with_logits",
    r"affine_grid_generator",
    r"xlogy.*",
    r"ldexp.*",
    r"(rad2deg|deg2rad)(_|\.out)?",
    r"_safe_softmax",
    r"_euclidean_dist",
    r"linalg_lstsq",
    r"cholesky_solve(\.out)?",
    r"_foreach_(?!copy|clone).*",
]

HEADER = """\
// Written by packages/ruda-torch/tools/host_operators.py from torch {version}; do not edit.
// RUDA_HOST_OPERATOR(operator, cpu_scalars): cpu_scalars is 1 where torch lets a 0-dimensional CPU
// tensor stand beside tensors of a device. {count} overloads.
"""


def _matches(patterns: list[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def declarations() -> tuple[list[Any], dict[Any, Any]]:
    """Every operator declared in the installed wheel, and torchgen's index of its kernels."""
    import torchgen
    from torchgen.gen import parse_native_yaml

    folder = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    return list(parsed.native_functions), dict(parsed.backend_indices)


def is_view(function: Any) -> bool:
    """Whether the operator returns a view or changes a tensor's geometry in place."""
    return bool(function.is_view_op) or "inplace_view" in function.tags


def is_random(function: Any) -> bool:
    """Whether the operator draws random numbers."""
    arguments = function.func.arguments.flat_all
    return "nondeterministic_seeded" in function.tags or any(
        str(argument.type) == "Generator?" for argument in arguments
    )


def takes_tensors(function: Any) -> bool:
    """Whether an argument is a tensor or a list of tensors."""
    return any("Tensor" in str(argument.type) for argument in function.func.arguments.flat_all)


def host_operators() -> list[tuple[str, bool]]:
    """(operator, cpu_scalars) for each overload the host target serves, sorted by name."""
    from torchgen.model import DeviceCheckType, DispatchKey

    functions, indices = declarations()
    chosen = []
    for function in functions:
        name = str(function.func.name)
        base = name.split(".")[0]
        if is_view(function) or is_random(function) or _matches(REFUSED, base):
            continue
        if name in ELSEWHERE or _matches(STUB_ROUTE, name):
            continue
        if function.has_composite_implicit_autograd_kernel:
            continue
        on_cpu = indices[DispatchKey.CPU].has_kernel(function) or function.structured_delegate
        if not on_cpu and not _matches(COMPOSITES, name):
            continue
        if not on_cpu and ("generated" in function.tags or not takes_tensors(function)):
            continue
        chosen.append((name, function.device_check == DeviceCheckType.NoCheck))
    return sorted(chosen)


def stub_route() -> list[str]:
    """The operators of STUB_ROUTE, sorted by name."""
    names = [str(function.func.name) for function in declarations()[0]]
    return sorted(name for name in names if _matches(STUB_ROUTE, name))


def render() -> str:
    """The text of the committed list for the installed torch."""
    import torch

    operators = host_operators()
    version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    lines = [f'RUDA_HOST_OPERATOR("{name}", {int(scalars)})' for name, scalars in operators]
    return HEADER.format(version=version, count=len(operators)) + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        if LIST.read_text() != render():
            print(f"{LIST.name} is out of date: run this script without --check", file=sys.stderr)
            return 1
        return 0
    LIST.parent.mkdir(exist_ok=True)
    LIST.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
