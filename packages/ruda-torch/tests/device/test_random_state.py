"""The generator's state. The numbers themselves are the random operators' tests."""

from __future__ import annotations

import struct

import pytest
import torch

from ruda_torch import _native

reserve = _native.testing.reserve_random


def words(state: torch.Tensor) -> tuple[int, int]:
    seed, offset = struct.unpack("<QQ", bytes(state.tolist()))
    return seed, offset


def test_state_is_seed_and_offset_in_sixteen_bytes() -> None:
    generator = torch.Generator("ruda")
    generator.manual_seed(123)
    state = generator.get_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert state.shape == (16,)
    assert words(state) == (123, 0)
    assert reserve(generator, 5) == (123, 0)
    assert words(generator.get_state()) == (123, 8)
    assert reserve(generator, 4) == (123, 8)
    assert generator.get_offset() == 12 if hasattr(generator, "get_offset") else True


def test_set_state_repeats_the_sequence() -> None:
    generator = torch.Generator("ruda")
    state = generator.get_state()
    first = [reserve(generator, 7) for _ in range(3)]
    generator.set_state(state)
    assert [reserve(generator, 7) for _ in range(3)] == first
    assert generator.device == torch.device("ruda", 0)


def test_wrong_states_are_refused() -> None:
    generator = torch.Generator("ruda")
    with pytest.raises(ValueError, match="got 5056 bytes, wanted 16"):
        generator.set_state(torch.zeros(5056, dtype=torch.uint8))
    with pytest.raises(TypeError, match="ByteTensor"):
        generator.set_state(torch.zeros(16))
    with pytest.raises(ValueError, match="multiple of 4"):
        generator.set_state(torch.tensor([0] * 8 + [1] + [0] * 7, dtype=torch.uint8))


def test_manual_seed_reaches_the_device() -> None:
    torch.manual_seed(2024)
    assert words(torch.ruda.get_rng_state()) == (2024, 0)
    reserve(None, 100)
    torch.manual_seed(2024)
    assert words(torch.ruda.get_rng_state()) == (2024, 0)
    assert torch.ruda.initial_seed() == 2024
    torch.ruda.manual_seed_all(5)
    assert words(torch.ruda.get_rng_state("ruda:0"))[0] == 5


def test_fork_rng_restores_the_device() -> None:
    torch.manual_seed(1)
    before = torch.ruda.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="ruda"):
        reserve(None, 50)
        torch.manual_seed(9)
    assert torch.equal(torch.ruda.get_rng_state(), before)


def test_seed_is_new_each_time() -> None:
    generator = torch.Generator("ruda")
    assert generator.seed() != generator.seed()
    assert generator.initial_seed() == words(generator.get_state())[0]


def test_clone_is_independent_and_graphsafe_state_is_shared() -> None:
    generator = torch.Generator("ruda")
    generator.manual_seed(3)
    copy = generator.clone_state()
    shared = generator.graphsafe_get_state()
    reserve(generator, 4)
    assert words(copy.get_state()) == (3, 0)
    assert words(shared.get_state()) == (3, 4)
    other = torch.Generator("ruda")
    other.graphsafe_set_state(generator)
    reserve(other, 4)
    assert words(generator.get_state()) == (3, 8)


def test_generators_of_other_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="'ruda' device type"):
        reserve(torch.Generator("cpu"), 1)
    with pytest.raises((RuntimeError, TypeError), match=r"ruda|device"):
        torch.Generator("ruda").graphsafe_set_state(torch.Generator("cpu"))


def test_states_of_all_devices() -> None:
    states = torch.ruda.get_rng_state_all()
    assert len(states) == torch.ruda.device_count() == len(torch.ruda.default_generators)
    torch.ruda.manual_seed(77)
    torch.ruda.set_rng_state_all(states)
    assert torch.equal(torch.ruda.get_rng_state(0), states[0])
    with pytest.raises(ValueError, match="got 0 states, wanted 1"):
        torch.ruda.set_rng_state_all([])
