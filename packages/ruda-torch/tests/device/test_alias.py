"""CPU aliases of ruda memory and the CPU allocator proxy: how ATen's kernels work on our memory."""

from __future__ import annotations

import gc

import pytest
import torch

from ruda_torch import _native

testing = _native.testing


def allocated() -> int:
    gc.collect()
    return torch.ruda.memory_allocated()


def test_alias_shares_memory_and_geometry() -> None:
    there = torch.arange(12.0).reshape(3, 4).to("ruda").t()[1:]
    alias = testing.alias_as_cpu(there)
    assert alias.device.type == "cpu"
    assert alias.shape == there.shape
    assert alias.stride() == there.stride()
    assert alias.storage_offset() == there.storage_offset()
    assert alias.data_ptr() == there.data_ptr()
    alias.zero_()
    assert there.cpu().eq(0).all()


def test_alias_keeps_the_memory_alive() -> None:
    before = allocated()
    there = torch.full((1000,), 3.0).to("ruda")
    alias = testing.alias_as_cpu(there)
    del there
    assert allocated() - before == 4000
    assert alias.eq(3).all()
    del alias
    assert allocated() == before


def test_alias_carries_lazy_bits() -> None:
    there = torch.tensor([1 + 2j]).to("ruda")
    assert testing.alias_as_cpu(there.conj()).is_conj()
    assert testing.alias_as_cpu(there.conj().imag).is_neg()
    assert testing.alias_as_cpu(there.conj()).item() == 1 - 2j


def test_results_inside_ruda_live_in_the_pool_and_move_without_a_copy() -> None:
    before = allocated()
    result = testing.inside_ruda(lambda: torch.ones(1000) + 1)
    assert allocated() - before == 4000
    assert testing.is_pool_memory(result)
    there = testing.adopt_as_ruda(result)
    assert there.device == torch.device("ruda", 0)
    assert there.data_ptr() == result.data_ptr()
    assert allocated() - before == 4000
    del result  # the ruda tensor owns the memory now
    assert allocated() - before == 4000
    assert there.cpu().eq(2).all()
    del there
    assert allocated() == before


def test_the_cpu_tensor_stays_usable_after_adoption() -> None:
    before = allocated()
    result = testing.inside_ruda(lambda: torch.zeros(8))
    there = testing.adopt_as_ruda(result)
    again = testing.adopt_as_ruda(result)
    assert again.untyped_storage()._cdata == there.untyped_storage()._cdata
    del there, again
    result.fill_(4)
    assert result.sum() == 32
    del result
    assert allocated() == before


def test_adopting_an_alias_gives_the_original_storage() -> None:
    there = torch.arange(6.0).to("ruda")
    view = testing.alias_as_cpu(there)[2:5]
    back = testing.adopt_as_ruda(view)
    assert back.untyped_storage()._cdata == there.untyped_storage()._cdata
    assert back.tolist() == [2.0, 3.0, 4.0]


def test_memory_from_elsewhere_is_copied_into_the_pool() -> None:
    outside = torch.arange(100.0)
    assert not testing.is_pool_memory(outside)
    before = allocated()
    there = testing.adopt_as_ruda(outside)
    assert allocated() - before == 400
    assert testing.is_pool_memory(there)
    outside.zero_()
    assert torch.equal(there.cpu(), torch.arange(100.0))


def test_a_resized_alias_moves_back() -> None:
    there = torch.empty(0, device="ruda")
    alias = testing.alias_as_cpu(there)
    testing.inside_ruda(lambda: torch.arange(50.0, out=alias))
    testing.sync_alias(there, alias)
    assert there.shape == (50,)
    assert testing.is_pool_memory(there)
    assert torch.equal(there.cpu(), torch.arange(50.0))
    assert testing.adopt_as_ruda(alias).untyped_storage()._cdata == there.untyped_storage()._cdata


def test_a_resize_outside_the_pool_is_copied_back() -> None:
    there = torch.ones(2).to("ruda")
    alias = testing.alias_as_cpu(there)
    alias.resize_(100)  # the flag is off: the system's memory
    alias[2:] = 5
    testing.sync_alias(there, alias)
    assert testing.is_pool_memory(there)
    assert there.tolist() == [1.0, 1.0] + [5.0] * 98


def test_views_see_the_new_memory_of_a_resized_base() -> None:
    there = torch.arange(4.0).to("ruda")
    view = there[1:3]
    there.resize_(1000)
    there[1] = 9
    assert view.tolist() == [9.0, 2.0]


def test_lazy_clones_are_written_apart() -> None:
    there = torch.arange(3.0).to("ruda")
    lazy = torch._lazy_clone(there)
    lazy.copy_(torch.zeros(3))
    assert there.tolist() == [0.0, 1.0, 2.0]
    assert lazy.tolist() == [0.0, 0.0, 0.0]


def test_cpu_programs_keep_their_allocator() -> None:
    before = allocated()
    assert not testing.is_pool_memory(torch.ones(1000))
    assert allocated() == before


def test_the_flag_is_cleared_after_an_exception() -> None:
    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        testing.inside_ruda(fail)
    assert not testing.is_pool_memory(torch.ones(10))
