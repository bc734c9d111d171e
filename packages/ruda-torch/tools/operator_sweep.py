"""Compare every operator of PyTorch's own operator database on ruda with the same call on the CPU.

    python packages/ruda-torch/tools/operator_sweep.py    # float32, 4 samples each
    python packages/ruda-torch/tools/operator_sweep.py --dtypes float32,bfloat16,int64 --samples 8
    python packages/ruda-torch/tools/operator_sweep.py --operators softmax,cumsum --verbose

Each sample runs forward, backward where the dtype has gradients, in place and with out= where the
operator has such a variant. Operators that draw random numbers are compared in shape and dtype
only. Prints what differs, what raised and what has no kernel; exit status 1 when anything is in the
first two groups.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import ruda_torch  # noqa: F401  (before torch.testing._internal, which lists devices at import)

# Undefined values, or a kernel language of CUDA's.
SKIPPED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
    "jiterator_binary_return_by_ref", "jiterator_unary",
    # A view's storage does not travel with it: the strides would reach outside of the copy.
    "as_strided", "as_strided_copy", "as_strided_scatter",
    # Its index tensor must be on the CPU on every device.
    "tensor_split",
}  # fmt: skip

RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "uniform", "rand_like", "randint", "randint_like", "randn", "randn_like", "pca_lowrank",
    "svd_lowrank", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward",
    "torch.ops.aten._efficient_attention_forward", "torch.ops.aten._flash_attention_forward",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One sample of one operator: `kind` is ok, different, raised, unlisted or refused."""

    operator: str
    dtype: torch.dtype
    sample: int
    variant: str
    kind: str
    text: str = ""


def full_name(info: Any) -> str:
    return info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")


def operator_database() -> list[Any]:
    """The operators of torch.testing's database, without those in SKIPPED."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if info.name not in SKIPPED]


def to_device(value: Any, device: str) -> Any:
    """The sample's value on `device`: tensors become leaves that require what they required."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(to_device(item, device) for item in value)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    return []


TOLERANCE = {torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)}


def check_equal(ours: Any, theirs: Any, values: bool) -> None:
    """AssertionError when the results differ in structure, device, shape, dtype or value."""
    got, wanted = tensors_in(ours), tensors_in(theirs)
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs, f"{ours}, wanted {theirs}"
        return
    assert len(got) == len(wanted), f"{len(got)} tensors, wanted {len(wanted)}"
    if not wanted and values:
        assert ours == theirs or (ours != ours and theirs != theirs), f"{ours}, wanted {theirs}"
    for one, other in zip(got, wanted, strict=True):
        if other.device.type == "cpu":
            assert one.device.type == "ruda", f"result on {one.device}"
        assert one.dtype == other.dtype, f"dtype {one.dtype}, wanted {other.dtype}"
        assert one.shape == other.shape, f"shape {list(one.shape)}, wanted {list(other.shape)}"
        if not values or other.layout != torch.strided:
            continue
        rtol, atol = TOLERANCE.get(other.dtype, (1e-5, 1e-5))
        torch.testing.assert_close(
            one.detach().cpu(), other.detach(), rtol=rtol, atol=atol, equal_nan=True
        )


def gradients(result: Any, inputs: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of a fixed weighted sum of the floating results."""
    outputs = [t for t in tensors_in(result) if t.requires_grad]
    leaves = [t for t in inputs if t.requires_grad]
    if not outputs or not leaves:
        return []
    weights = []
    for output in outputs:
        # The same numbers on both devices, not symmetric, so that a transposed gradient shows.
        steps = torch.arange(output.numel(), dtype=torch.float64).reshape(output.shape)
        weights.append((steps.cos() + 0.5).to(output.dtype).to(output.device))
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def run_variants(info: Any, sample: Any, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The sample's results on `device` by variant: forward, backward, in place, out."""
    results: dict[str, Any] = {}

    def inputs() -> tuple[Any, Any, Any]:
        moved = [to_device(part, device) for part in (sample.input, sample.args, sample.kwargs)]
        return moved[0], moved[1], moved[2]

    first, args, kwargs = inputs()
    result = info(first, *args, **kwargs)
    results["forward"] = to_device(result, device) if device == "cpu" else result
    if info.supports_autograd and dtype.is_floating_point:
        leaves = tensors_in([first, *args, kwargs])
        results["backward"] = gradients(result, leaves)
    inplace = info.get_inplace()
    if inplace is not None and not sample.broadcasts_input and isinstance(first, torch.Tensor):
        first, args, kwargs = inputs()
        target = first.detach().clone()
        try:
            results["in place"] = inplace(target, *args, **kwargs)
        except NotImplementedError:
            raise
        except RuntimeError as error:  # such as a result dtype that the target cannot take
            results["in place"] = type(error).__name__
    if info.supports_out and isinstance(result, torch.Tensor):
        first, args, kwargs = to_device((first, args, kwargs), device)
        with torch.no_grad():
            out = torch.empty(0, dtype=result.dtype, device=result.device)
            info(first, *args, **kwargs, out=out)
            results["out"] = out
    return results


def sweep_operator(info: Any, dtype: torch.dtype, samples: int) -> Iterator[Outcome]:
    """Compare the first `samples` samples of one operator in one dtype."""
    name = full_name(info)
    values = info.name not in RANDOM
    differentiable = info.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    # Not info.sample_inputs, which looks for the running test on Python's stack at every sample.
    inputs = info.sample_inputs_func(info, "cpu", dtype, differentiable)
    for index, sample in enumerate(inputs):
        if index >= samples:
            return
        try:
            theirs = run_variants(info, sample, dtype, "cpu")
        except Exception as error:  # the CPU refuses it: not a question about ruda
            yield Outcome(name, dtype, index, "forward", "refused", str(error))
            continue
        try:
            ours = run_variants(info, sample, dtype, "ruda")
        except NotImplementedError as error:
            yield Outcome(name, dtype, index, "any", "unlisted", str(error))
            continue
        except Exception as error:
            yield Outcome(name, dtype, index, "any", "raised", f"{type(error).__name__}: {error}")
            continue
        for variant, wanted in theirs.items():
            try:
                check_equal(ours.get(variant), wanted, values)
            except AssertionError as error:
                yield Outcome(name, dtype, index, variant, "different", str(error))
            else:
                yield Outcome(name, dtype, index, variant, "ok")


def sweep(
    dtypes: list[torch.dtype], samples: int, names: set[str] | None = None
) -> Iterator[Outcome]:
    """Compare the whole database, or the operators in `names`."""
    for info in operator_database():
        if names is not None and info.name not in names:
            continue
        for dtype in dtypes:
            if dtype in info.supported_dtypes("cpu"):
                yield from sweep_operator(info, dtype, samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default="float32", help="comma-separated names")
    parser.add_argument("--samples", type=int, default=4, help="samples of an operator and dtype")
    parser.add_argument("--operators", help="comma-separated names; the default is all")
    parser.add_argument("--verbose", action="store_true", help="whole messages")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    dtypes = [getattr(torch, name) for name in arguments.dtypes.split(",")]
    names = set(arguments.operators.split(",")) if arguments.operators else None
    counts: collections.Counter[str] = collections.Counter()
    seen = set()
    for outcome in sweep(dtypes, arguments.samples, names):
        counts[outcome.kind] += 1
        key = (outcome.operator, outcome.dtype, outcome.variant, outcome.kind)
        if outcome.kind in ("ok", "refused") or key in seen:
            continue
        seen.add(key)
        text = outcome.text if arguments.verbose else outcome.text.strip().replace("\n", " ")[:200]
        print(f"{outcome.kind:9} {outcome.operator} {outcome.dtype} [{outcome.variant}] {text}")
    print(dict(counts))
    return 1 if counts["different"] or counts["raised"] else 0


if __name__ == "__main__":
    sys.exit(main())
