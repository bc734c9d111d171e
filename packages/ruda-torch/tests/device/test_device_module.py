"""`torch.ruda` and what PyTorch's generic code finds through it."""

from __future__ import annotations

import sys

import pytest
import torch

import ruda_torch


def test_names_and_module() -> None:
    assert torch.ruda is sys.modules["torch.ruda"]
    assert torch.get_device_module("ruda") is torch.ruda
    assert torch._C._get_privateuse1_backend_name() == "ruda"
    assert torch.utils.backend_registration._privateuse1_backend_name == "ruda"
    assert torch.profiler.ProfilerActivity.PrivateUse1 == torch.profiler.ProfilerActivity.RUDA
    assert str(torch.device("ruda", 0)) == "ruda:0"
    assert torch.device("ruda") != torch.device("cuda")
    assert not torch.ones(1).to("ruda").is_cuda


def test_one_device() -> None:
    assert torch.ruda.is_available() and ruda_torch.is_available()
    assert torch.ruda.device_count() == ruda_torch.device_count() == 1
    assert torch.ruda.current_device() == ruda_torch.current_device() == 0
    torch.ruda.set_device(0)
    torch.ruda.set_device("ruda:0")
    for wrong in (1, "ruda:1", torch.device("ruda", 3)):
        with pytest.raises(ValueError, match="there is one device"):
            torch.ruda.set_device(wrong)
    with pytest.raises(ValueError, match="got 'cpu', wanted 'ruda'"):
        torch.ruda.set_device("cpu")


def test_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("ruda")
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    with torch.accelerator.device_index(0):
        assert torch.empty(1, device="ruda").get_device() == 0
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool} <= set(dtypes)
    assert torch.quint8 not in dtypes


def test_device_contexts() -> None:
    tensor = torch.ones(1).to("ruda")
    with torch.ruda.device(0), torch.ruda.device("ruda"), torch.ruda.device(None):
        assert torch.empty(1, device="ruda").device.index == 0
    with torch.ruda.device_of(tensor), torch.ruda.device_of(torch.ones(1)), torch.ruda.device(-1):
        pass
    with torch.device("ruda"):
        assert torch.empty(2).device == torch.device("ruda", 0)
    with pytest.raises(ValueError, match="one device"):
        torch.ruda.device(2)


def test_default_device() -> None:
    torch.set_default_device("ruda")
    try:
        assert torch.empty(2).device.type == "ruda"
        assert torch.tensor([1.0, 2.0]).device.type == "ruda"
    finally:
        torch.set_default_device(None)


def test_initialized_is_live() -> None:
    torch.empty(1, device="ruda")
    assert torch.ruda._initialized is True
    assert torch.ruda.is_initialized()
    assert torch.ruda._is_in_bad_fork() is False
    torch.ruda._lazy_init()
    torch.ruda.init()


def test_device_indices() -> None:
    index = torch.ruda._utils._get_device_index
    assert index("ruda", True) == index("ruda:0") == index(0) == index(None, True) == 0
    assert index("cpu", allow_cpu=True) == -1
    with pytest.raises(ValueError, match="None"):
        index(None)
    with pytest.raises(TypeError, match="got float"):
        index(1.5)


def test_properties() -> None:
    properties = torch.ruda.get_device_properties("ruda:0")
    assert properties.name == torch.ruda.get_device_name()
    assert properties.target == "host"
    assert properties.multi_processor_count >= 1
    assert torch.ruda.get_device_capability(0) == (0, 0)
    assert torch.bfloat16 in torch.ruda.get_amp_supported_dtype()
    assert torch.ruda.is_bf16_supported()


def test_generated_methods() -> None:
    tensor = torch.arange(3.0)
    there = tensor.ruda()
    assert there.is_ruda and not tensor.is_ruda
    assert there.untyped_storage().is_ruda
    assert tensor.untyped_storage().ruda().device.type == "ruda"
    packed = torch.nn.utils.rnn.pack_sequence([tensor]).ruda()
    assert packed.data.device.type == "ruda"


def test_every_public_name_exists_and_is_documented() -> None:
    for module in (torch.ruda, ruda_torch):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                assert value.__doc__, f"{module.__name__}.{name}"


def test_unknown_attributes_are_attribute_errors() -> None:
    # PyTorch probes optional features with hasattr.
    for name in ("memory_snapshot", "graph", "FloatTensor"):
        assert not hasattr(torch.ruda, name)


def test_legacy_type_name() -> None:
    assert torch.ones(1).to("ruda").type() == "torch.ruda.FloatTensor"


def test_fake_tensors_know_the_index() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.empty(1, device="ruda")
    with FakeTensorMode():
        total = torch.empty(2, device="ruda") + torch.empty(2, device="ruda:0")
        assert total.device == torch.device("ruda", 0)


def test_autograd_runs_on_the_calling_thread() -> None:
    import threading

    seen: list[int] = []
    weight = torch.ones(3).to("ruda").requires_grad_()
    weight.register_hook(lambda grad: seen.append(threading.get_ident()))
    (weight * weight).sum().backward()
    assert seen == [threading.get_ident()]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3


def test_retained_graph_from_several_threads() -> None:
    import threading

    weight = torch.ones(3).to("ruda").requires_grad_()
    loss = (weight * 2).sum()
    results: list[list[float]] = []

    def backward() -> None:
        (grad,) = torch.autograd.grad(loss, weight, retain_graph=True)
        results.append(grad.tolist())

    threads = [threading.Thread(target=backward) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2.0] * 3] * 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_the_random_state(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).to("ruda")
    data = torch.randn(8, 64).to("ruda").requires_grad_()

    def gradients(checkpointed: bool) -> list[torch.Tensor]:
        layer.zero_grad()
        data.grad = None
        torch.manual_seed(7)
        out = checkpoint(layer, data, use_reentrant=reentrant) if checkpointed else layer(data)
        after = torch.ruda.get_rng_state()
        torch.rand(3, device="ruda")  # what other layers would draw before the recomputation
        out.square().sum().backward()
        assert not torch.equal(torch.ruda.get_rng_state(), after)
        tensors = [data, *layer.parameters()]
        return [tensor.grad.cpu() for tensor in tensors if tensor.grad is not None]

    plain, recomputed = gradients(False), gradients(True)
    assert len(plain) == len(recomputed) == 3
    for one, other in zip(plain, recomputed):
        assert torch.equal(one, other)
    assert plain[0].abs().sum() > 0


def test_stats_grow() -> None:
    before = ruda_torch.execution_stats()
    assert set(before) == {
        "native_launches",
        "library_calls",
        "transfers",
        "transfers_to_device",
        "transfers_to_host",
        "bytes_to_device",
        "bytes_to_host",
    }
    there = torch.ones(3).to("ruda")
    (there + there).exp()
    after = ruda_torch.execution_stats()
    assert after["library_calls"] + after["native_launches"] >= (
        before["library_calls"] + before["native_launches"] + 2
    )
    assert after["transfers"] == before["transfers"] + 1
