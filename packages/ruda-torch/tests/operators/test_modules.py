"""PyTorch's module database and foreach databases on ruda against the CPU."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from .support import tool

sweep = tool("operator_sweep")

# Random in training, or parameters that are made at the first call.
RANDOM = ("Dropout", "RReLU", "Fractional", "Lazy")


def modules() -> list:
    from torch.testing._internal.common_modules import module_db

    return [info for info in module_db if not any(word in info.name for word in RANDOM)]


def foreach_operators() -> list:
    from torch.testing._internal import common_methods_invocations as database

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    return [info for kind in kinds for info in getattr(database, f"foreach_{kind}_op_db")]


def run(info, given, training: bool) -> None:
    torch.manual_seed(0)
    module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    module.train(training)
    twin = copy.deepcopy(module).to("ruda")
    call = (given.forward_input.args, given.forward_input.kwargs)
    moved = sweep.to_device(call, "ruda")
    wanted, result = module(*call[0], **call[1]), twin(*moved[0], **moved[1])
    sweep.check_equal(result, wanted, values=True)
    if len({id(t) for t in sweep.tensors_in(call)}) < len(sweep.tensors_in(call)):
        return  # one tensor in two places is two on ruda: other gradients
    sweep.check_equal(
        sweep.gradients(result, [*twin.parameters(), *sweep.tensors_in(moved)]),
        sweep.gradients(wanted, [*module.parameters(), *sweep.tensors_in(call)]),
        values=True,
    )
    for ours, theirs in zip(twin.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_every_module(training: bool, request: pytest.FixtureRequest) -> None:
    limit = None if request.config.getoption("--slow", False) else 2
    runs = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in modules():
            if not training and not info.train_and_eval_differ:
                continue
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for given in inputs[:limit]:
                if given.forward_input is not None:
                    run(info, given, training)
                    runs += 1
    assert runs >= (150 if training else 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_every_foreach_operator(dtype: torch.dtype) -> None:
    runs = 0
    for info in foreach_operators():
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for index, sample in enumerate(info.sample_inputs("cpu", dtype, noncontiguous=False)):
            if index == 3:
                break
            for function in (info.method_variant, info.inplace_variant):
                if function is None:
                    continue

                def results(device: str, function=function, sample=sample):
                    tensors = [t.clone() for t in sweep.to_device(sample.input, device)]
                    args, kwargs = sweep.to_device((sample.args, sample.kwargs), device)
                    returned = function(tensors, *args, **kwargs)
                    return tensors if returned is None else returned

                try:
                    wanted = results("cpu")
                except RuntimeError:
                    continue  # a dtype that the operator does not take in this form
                sweep.check_equal(results("ruda"), wanted, values=True)
                runs += 1
    assert runs > 50
