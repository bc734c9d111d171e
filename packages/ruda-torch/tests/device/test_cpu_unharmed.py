"""Programs that never touch the device behave as without the package."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


def test_pinned_memory_and_non_blocking_copies() -> None:
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.ones(3).to("cpu", non_blocking=True).tolist() == [1.0] * 3
    assert torch.ones(3).pin_memory().is_pinned()


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_with_pinned_memory(workers: int) -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    batches = list(loader)
    assert all(part.is_pinned() for batch in batches for part in batch)
    assert torch.equal(torch.cat([batch[0] for batch in batches]), data.tensors[0])
    assert torch.equal(batches[0][0].to("ruda", non_blocking=True).cpu(), data.tensors[0][:4])


def test_backward_and_autocast_on_the_cpu() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = weight @ weight
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert weight.grad is not None


def test_cpu_storage_of_a_resized_tensor_is_not_ours() -> None:
    before = torch.ruda.memory_allocated()
    tensor = torch.empty(0)
    tensor.resize_(1000)
    torch.arange(10_000, out=torch.empty(0, dtype=torch.int64))
    assert torch.ruda.memory_allocated() == before


def test_process_groups_on_the_cpu(tmp_path: object) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("torch was built without distributed")
    # Without a backend PyTorch asks for one as soon as an accelerator is known: its own message.
    with pytest.raises(ValueError, match="specify the `backend`"):
        dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0] * 3
        with pytest.raises(RuntimeError, match="ruda"):
            dist.all_reduce(torch.ones(3).to("ruda"))
    finally:
        dist.destroy_process_group()
    assert all(len(name) > 1 for name in dist.Backend.default_device_backend_map)
