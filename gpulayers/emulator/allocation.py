"""Device memory made of host memory: aligned, poisoned when new, and findable by address."""

from __future__ import annotations

import bisect
import threading
import weakref
from typing import Any

import numpy as np

ALIGNMENT = 512  # as CuPy's memory pool
POISON_LIMIT = 1 << 28  # larger blocks are left as the system gives them: pages that nobody touches cost nothing


class Allocation:
    """`size` bytes at `address`, a multiple of 512. New memory is all ones: NaN as a float, -1 as an integer."""

    def __init__(self, size: int) -> None:
        room = size + 2 * ALIGNMENT
        buffer = np.full(room, 0xFF, np.uint8) if size <= POISON_LIMIT else np.zeros(room, np.uint8)
        start = -buffer.ctypes.data % ALIGNMENT
        self.size, self.address = size, buffer.ctypes.data + start
        self.data = buffer[start : start + size]
        _live.add(self)


class _Live:
    """The allocations in use, by address."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self.table: dict[int, weakref.ref[Allocation]] = {}
        self.lock = threading.RLock()

    def add(self, allocation: Allocation) -> None:
        with self.lock:
            address = allocation.address
            if address not in self.table:
                bisect.insort(self.addresses, address)
            self.table[address] = weakref.ref(allocation, lambda dead: self._remove(address, dead))

    def _remove(self, address: int, dead: weakref.ref[Allocation], locate: Any = bisect.bisect_left) -> None:
        with self.lock:  # `locate`: arrays that live to the end of the program die when modules are empty already
            if self.table.get(address) is dead:  # the system may have given the address to a new one already
                del self.table[address]
                del self.addresses[locate(self.addresses, address)]

    def find(self, address: int) -> Allocation | None:
        with self.lock:
            number = bisect.bisect_right(self.addresses, address) - 1
            found = self.table[self.addresses[number]]() if number >= 0 else None
        return found if found is not None and address < found.address + max(1, found.size) else None

    def all(self) -> list[Allocation]:
        with self.lock:
            found = [reference() for reference in self.table.values()]
        return [allocation for allocation in found if allocation is not None]


_live = _Live()


def find(address: int) -> Allocation | None:
    """The live allocation that contains an address."""
    return _live.find(address)


def live() -> list[Allocation]:
    """All live allocations."""
    return _live.all()
