"""CuPy's memory pool over host memory: sizes in steps of 512 bytes, a limit, pointers with arithmetic."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from gpulayers.emulator.allocation import ALIGNMENT, Allocation, find

TOTAL = 8 << 30  # what the emulated device claims to have


class OutOfMemoryError(MemoryError):
    """More than the pool's limit was asked for."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        limited = f" (limit set to: {limit:,} bytes)" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes){limited}.")


class MemoryPointer:
    """An address inside a block of device memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self._offset = mem, offset

    @property
    def ptr(self) -> int:
        """The address."""
        return self.mem.address + self._offset if self.mem is not None else 0

    @property
    def device_id(self) -> int:
        """Always 0."""
        return 0

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset + offset)

    def __int__(self) -> int:
        return self.ptr

    def memset(self, value: int, size: int) -> None:
        """Fill `size` bytes."""
        self.mem.data[self._offset : self._offset + size] = value

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Fill `size` bytes; nothing is asynchronous here."""
        self.memset(value, size)


def pointer(address: int) -> MemoryPointer:
    """The pointer to an address in a live block."""
    allocation = find(address)
    return MemoryPointer(allocation, address - allocation.address if allocation else 0)


class MemoryPool:
    """Counts what is in use; freed blocks count as free bytes until `free_all_blocks`."""

    def __init__(self, allocator: Callable | None = None) -> None:
        self._lock = threading.RLock()
        self._used = self._free = self._limit = 0

    def malloc(self, size: int) -> MemoryPointer:
        """A new block."""
        return MemoryPointer(self.allocate(size), 0)

    def allocate(self, size: int) -> Allocation:
        """A new block that is returned to the pool when it dies."""
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if self._limit and self._used + rounded > self._limit:
                raise OutOfMemoryError(rounded, self._used, self._limit)
            self._free = max(0, self._free - rounded)
            self._used += rounded
        allocation = Allocation(size)
        weakref.finalize(allocation, self._returned, rounded).atexit = False
        return allocation

    def _returned(self, size: int) -> None:
        with self._lock:
            self._used -= size
            self._free += size

    def used_bytes(self) -> int:
        """Bytes in use."""
        return self._used

    def free_bytes(self) -> int:
        """Bytes held but not in use."""
        return self._free

    def total_bytes(self) -> int:
        """Bytes held."""
        return self._used + self._free

    def n_free_blocks(self) -> int:
        """Whether anything is held but not in use."""
        return int(self._free > 0)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give back what is not in use."""
        self._free = 0

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """The most that may be in use; 0 means no limit."""
        if (size is None) == (fraction is None):
            raise ValueError("Either of size or fraction must be specified")
        self._limit = size if size is not None else int(TOTAL * (fraction or 0))

    def get_limit(self) -> int:
        """The limit, 0 for none."""
        return self._limit


class PinnedMemoryPool:
    """There is no pinned memory here; the counters stay at zero."""

    def n_free_blocks(self) -> int:
        """Always 0."""
        return 0

    def free_all_blocks(self) -> None:
        """Nothing to do."""


default_pool = MemoryPool()
pinned_pool = PinnedMemoryPool()


def allocate_array(shape: Any, dtype: Any, order: Any = "C") -> tuple[np.ndarray, Allocation]:
    """A poisoned array from the default pool, and its block."""
    shape = tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    allocation = default_pool.allocate(size)
    return np.ndarray(shape, kind, allocation.data.data if size else None, order=order), allocation
