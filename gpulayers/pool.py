"""Host memory whose blocks are used again: the pool behind `backend.empty` on NumPy.

A large fresh array costs a page fault for each 4 KiB the first time it is written, and the allocator gives the memory
back to the system when the array dies, so every training step would pay anew. Here a block stays mapped: a lease is
the `base` of the array and of all views on it, and when the last of them dies the block returns to the free list.
"""

import ctypes
import functools
import math
from typing import Any, NamedTuple

import numpy as np

SMALL = 1 << 15  # below 32 KiB the allocator keeps its memory anyway, and is faster than the pool
ALIGNMENT = 64  # a cache line, and the widest vector load


class _Block(NamedTuple):
    memory: np.ndarray
    address: int  # the first aligned one


class _Blocks:
    """The blocks of one capacity in bytes: `free` ones, which nobody uses, and the type of a lease on one.

    A lease is a ctypes array that lies on the block, since that is what NumPy makes an array on in the least time: an
    array from the pool takes 3 us, one by `__array_interface__` took 12, in steps of 100 arrays or more.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free: list[_Block] = []
        give_back = self.free.append

        class Lease(ctypes.c_char * capacity):
            block: _Block

            def __del__(self) -> None:
                give_back(self.block)

        self._lease = Lease

    def lend(self) -> Any:
        try:
            block = self.free.pop()  # one call, so that two threads cannot get the same block
        except IndexError:
            memory = np.empty(self.capacity + ALIGNMENT, np.uint8)
            block = _Block(memory, memory.ctypes.data + -memory.ctypes.data % ALIGNMENT)
        lease = self._lease.from_address(block.address)
        lease.block = block
        return lease


_all: dict[int, _Blocks] = {}  # by capacity


def pool_empty(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array like `numpy.empty`, on a block that an earlier array may have used."""
    size = shape if isinstance(shape, int) else math.prod(shape)
    nbytes = size * dtype.itemsize
    if nbytes < SMALL or dtype.hasobject:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, _blocks_for(nbytes).lend())


@functools.lru_cache(4096)
def _blocks_for(nbytes: int) -> _Blocks:
    """Those of the capacity that holds `nbytes`, one of four per power of two: nearly equal shapes share blocks.

    From 4 MiB on it is one of 32. NumPy asks for huge pages there, of which one that is begun is taken whole.
    """
    unit = 1 << max(12, nbytes.bit_length() - (3 if nbytes < 1 << 22 else 6))
    capacity = -(-nbytes // unit) * unit
    return _all.setdefault(capacity, _Blocks(capacity))


def pool_bytes() -> int:
    """Bytes in free blocks."""
    return sum(blocks.capacity * len(blocks.free) for blocks in list(_all.values()))  # a copy: threads may add sizes


def pool_clear() -> None:
    """Give all free blocks back to the system."""
    for blocks in list(_all.values()):
        blocks.free.clear()
