"""Device indices. There is one device, so that every index is 0 or an error."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeAlias

import torch

Device: TypeAlias = int | str | torch.device
OptionalDevice: TypeAlias = Device | None


def _get_device_index(
    device: OptionalDevice, optional: bool = False, allow_cpu: bool = False
) -> int:
    """The index that `device` means; None means the current device where `optional` is set."""
    if device is None:
        if optional:
            return 0
        raise ValueError("[ruda] device: got None, wanted 'ruda', 'ruda:0' or 0")
    if isinstance(device, int) and not isinstance(device, bool):
        index: int | None = device
    else:
        if isinstance(device, str):
            device = torch.device(device)
        if not isinstance(device, torch.device):
            raise TypeError(
                f"[ruda] device: got {type(device).__name__}, wanted an index, a name or a device"
            )
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type != "ruda":
            raise ValueError(f"[ruda] device: got '{device}', wanted 'ruda'")
        index = device.index
    if index not in (None, 0):
        raise ValueError(f"[ruda] device index: got {index}, wanted 0 (there is one device)")
    return 0


class device:
    """Context manager that makes `device` the current one: `with torch.ruda.device(0): ...`.

    A negative index or None leaves the device as it is.
    """

    def __init__(self, device: OptionalDevice) -> None:
        keep = isinstance(device, int) and not isinstance(device, bool) and device < 0
        self.idx = -1 if keep else _get_device_index(device, optional=True)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class device_of(device):
    """Context manager that makes the device of a ruda tensor the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "ruda" else -1)
