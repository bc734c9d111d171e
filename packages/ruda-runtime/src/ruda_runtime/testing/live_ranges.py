"""The allocations that device code may touch, and the check of a block of pointers against them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Any

import numpy as np


class MemoryViolation(Exception):
    """A kernel touched memory that it may not touch; ``code`` is the CUDA error for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


ILLEGAL_ADDRESS = 700
MISALIGNED_ADDRESS = 716


class LiveRanges:
    """Sorted address ranges [start, end), each with the number of its allocation."""

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")
        self._serials = array("Q")
        self._gone: dict[int, tuple[int, int]] = {}  # freed: start -> (end, number)
        self._allowed: set[int] | None = None

    def allocated(self, start: int, size: int, serial: int) -> None:
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._ends.insert(at, start + size)
        self._serials.insert(at, serial)
        self._gone.pop(start, None)

    def freed(self, start: int) -> None:
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._starts[at] != start:
            return
        if len(self._gone) > 4096:
            self._gone.pop(next(iter(self._gone)))
        self._gone[start] = (self._ends.pop(at), self._serials.pop(at))
        self._starts.pop(at)

    def find(self, address: int) -> int:
        """The index of the range that holds an address, or -1."""
        at = bisect_right(self._starts, address) - 1
        return at if at >= 0 and address < self._ends[at] else -1

    def allow(self, pointers: list[int]) -> None:
        """From now on only the allocations that one of these pointers points to may be touched."""
        found = (self.find(pointer) for pointer in pointers)
        self._allowed = {self._serials[at] for at in found if at >= 0}

    def allow_all(self) -> None:
        """For kernels that make pointers from integers: any live allocation may be touched."""
        self._allowed = None

    def check(self, pointers: np.ndarray, mask: np.ndarray | None, size: int, verb: str) -> None:
        """Check an access of ``size`` bytes at each pointer whose mask is set.

        Raises:
            MemoryViolation: an address is outside all allocations, in one that no argument points
                to, or not a multiple of the element's size.
        """
        chosen = pointers if mask is None else pointers[mask]
        if chosen.size == 0:
            return
        low, high = int(chosen.min()), int(chosen.max())
        if size > 1 and int(np.bitwise_or.reduce(chosen, axis=None)) & (size - 1):
            wrong = int(chosen[(chosen & np.uint64(size - 1)) != 0].flat[0])
            raise MemoryViolation(
                MISALIGNED_ADDRESS,
                f"{verb} of {size} bytes at 0x{wrong:x}: not a multiple of the element's size",
            )
        at = bisect_right(self._starts, low) - 1
        if at >= 0 and high + size <= self._ends[at]:
            self._check_allowed(at, low, verb)
            return
        self._check_each(chosen.reshape(-1), size, verb)

    def _check_each(self, chosen: np.ndarray, size: int, verb: str) -> None:
        starts = np.array(self._starts, dtype=np.uint64)
        ends = np.array(self._ends, dtype=np.uint64)
        at = np.searchsorted(starts, chosen, side="right").astype(np.int64) - 1
        outside = at < 0
        if len(ends):
            outside |= chosen + np.uint64(size) > ends[at]
        if outside.any():
            wrong = chosen[outside]
            raise MemoryViolation(
                ILLEGAL_ADDRESS,
                f"{verb} of {size} bytes at 0x{int(wrong[0]):x}, outside all live allocations "
                f"({wrong.size} of {chosen.size} addresses of this block): "
                + self._near(int(wrong[0])),
            )
        for index in np.unique(at):
            self._check_allowed(int(index), int(chosen[at == index][0]), verb)

    def _check_allowed(self, at: int, address: int, verb: str) -> None:
        if self._allowed is None or self._serials[at] in self._allowed:
            return
        raise MemoryViolation(
            ILLEGAL_ADDRESS,
            f"{verb} at 0x{address:x}, in allocation {self._serials[at]} "
            f"({self._ends[at] - self._starts[at]} bytes at 0x{self._starts[at]:x}), to which no "
            "argument of the kernel points",
        )

    def _near(self, address: int) -> str:
        for start, (end, serial) in self._gone.items():
            if start <= address < end:
                return f"inside allocation {serial} ({end - start} bytes at 0x{start:x}), freed"
        at = bisect_right(self._starts, address) - 1
        candidates: list[tuple[int, Any]] = []
        if at >= 0:
            candidates.append((address - self._ends[at], (at, "behind the end of")))
        if at + 1 < len(self._starts):
            candidates.append((self._starts[at + 1] - address, (at + 1, "before the start of")))
        if not candidates:
            return "there is none"
        distance, (index, where) = min(candidates, key=lambda one: one[0])
        start, end = self._starts[index], self._ends[index]
        return (
            f"{distance} bytes {where} allocation {self._serials[index]} "
            f"({end - start} bytes at 0x{start:x})"
        )
