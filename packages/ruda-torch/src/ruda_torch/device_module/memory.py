"""Memory functions, over `torch.accelerator` and the pool of ruda-runtime.

`allocated` counts bytes as asked for by live blocks; `reserved` what the pool holds of the system.
"""

from __future__ import annotations

from typing import Any

import torch

from ._utils import OptionalDevice, _get_device_index


def _index(device: OptionalDevice) -> int:
    return _get_device_index(device, optional=True)


def memory_allocated(device: OptionalDevice = None) -> int:
    """Bytes of live blocks."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: OptionalDevice = None) -> int:
    """Maximum of `memory_allocated` since the start or the last `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: OptionalDevice = None) -> int:
    """Bytes the pool holds, in use or cached."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: OptionalDevice = None) -> int:
    """Maximum of `memory_reserved` since the start or the last `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(_index(device))


def memory_stats(device: OptionalDevice = None) -> dict[str, Any]:
    """The allocator's numbers under `torch.accelerator`'s names; there is one pool, `all`."""
    return dict(torch.accelerator.memory_stats(_index(device)))


def reset_peak_memory_stats(device: OptionalDevice = None) -> None:
    """Start the maxima again at the current numbers."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: OptionalDevice = None) -> None:
    """Start the sums (bytes and blocks allocated and freed) again at zero."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def empty_cache() -> None:
    """Give the pool's unused memory back to the system."""
    torch.accelerator.empty_cache()


def mem_get_info(device: OptionalDevice = None) -> tuple[int, int]:
    """Free and total bytes: of the machine, its control group or RUDA_MEMORY_LIMIT, the least."""
    free, total = torch.accelerator.get_memory_info(_index(device))
    return free, total


def memory_summary(device: OptionalDevice = None) -> str:
    """A small table of `memory_stats` for people."""
    stats = memory_stats(device)
    free, total = mem_get_info(device)

    def mib(value: int) -> str:
        return f"{value / 2**20:12.2f} MiB"

    rows = [
        ("allocated", mib(stats["allocated_bytes.all.current"])),
        ("allocated, peak", mib(stats["allocated_bytes.all.peak"])),
        ("reserved", mib(stats["reserved_bytes.all.current"])),
        ("reserved, peak", mib(stats["reserved_bytes.all.peak"])),
        ("live blocks", f"{stats['allocation.all.current']:12d}"),
        ("allocations", f"{stats['allocation.all.allocated']:12d}"),
        ("refused (out of memory)", f"{stats['num_ooms']:12d}"),
        ("free on the machine", mib(free)),
        ("total on the machine", mib(total)),
    ]
    return "\n".join(f"{name:<24}{value}" for name, value in rows)
