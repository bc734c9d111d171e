"""Random state. The generator is Philox: its state is a seed and an offset, 16 bytes of uint8."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .. import _native
from ._utils import Device, _get_device_index

default_generators: tuple[torch.Generator, ...] = (_native.default_generator(0),)


def _get_generator(device: torch.device) -> torch.Generator:
    return default_generators[_get_device_index(device)]


def get_rng_state(device: Device = "ruda") -> torch.Tensor:
    """The default generator's state: uint8 [16] on the CPU, seed then offset."""
    return default_generators[_get_device_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "ruda") -> None:
    """Set the default generator's state to one that `get_rng_state` gave."""
    state = new_state.detach().to("cpu").contiguous()
    default_generators[_get_device_index(device)].set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device's default generator."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state of every device's default generator."""
    states = list(new_states)
    if len(states) != len(default_generators):
        raise ValueError(
            f"[set_rng_state_all] got {len(states)} states, wanted {len(default_generators)}"
        )
    for index, state in enumerate(states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator; its offset goes to 0."""
    default_generators[0].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    manual_seed(seed)


def seed() -> int:
    """Seed the current device's generator from the system; gives the seed."""
    return default_generators[0].seed()


def seed_all() -> None:
    """Seed every device's generator from the system."""
    seed()


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[0].initial_seed()
