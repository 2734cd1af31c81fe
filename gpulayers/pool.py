"""Host memory whose blocks are used again: the pool behind `backend.empty` on NumPy.

A large fresh array costs a page fault for each 4 KiB the first time it is written, and the allocator gives the memory
back to the system when the array dies, so every training step would pay anew. Here a block stays mapped: a lease is
the `base` of the array and of all views on it, and when the last of them dies the block returns to the free list.

Equal steps find their blocks. Where every batch has another length, new sizes come all the time and old ones are not
asked for again: so a new block is made only if no free one is large enough and less than twice too large, and then free
ones are let go until no more is free than was ever lent at once.
"""

import ctypes
import functools
import itertools
import math
import threading
from typing import Any, NamedTuple

import numpy as np

SMALL = 1 << 15  # below 32 KiB the allocator keeps its memory anyway, and is faster than the pool
ALIGNMENT = 64  # a cache line, and the widest vector load
LEAST = 1 << 28  # bytes that may be free in any case


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
        self.used = 0  # when, in counts of `_clock`
        self.free: list[_Block] = []
        give_back = self.free.append

        class Lease(ctypes.c_char * capacity):
            block: _Block

            def __del__(self) -> None:
                give_back(self.block)

        self._lease = Lease

    def lend(self) -> Any:
        """A lease on a free block, or None."""
        try:
            block = self.free.pop()  # one call, so that two threads cannot get the same block
        except IndexError:
            return None
        return self._lease_on(block)

    def lend_new(self) -> Any:
        memory = np.empty(self.capacity + ALIGNMENT, np.uint8)
        _made(self.capacity)
        return self._lease_on(_Block(memory, memory.ctypes.data + -memory.ctypes.data % ALIGNMENT))

    def let_go(self) -> int:
        """Give a free block back to the system. Returns its size, 0 if there was none."""
        try:
            self.free.pop()
        except IndexError:
            return 0
        return self.capacity

    def _lease_on(self, block: _Block) -> Any:
        self.used = next(_clock)
        lease = self._lease.from_address(block.address)
        lease.block = block
        return lease


_all: dict[int, _Blocks] = {}  # by capacity
_clock = itertools.count(1)
_lock = threading.RLock()  # of the two numbers below
_held = 0  # bytes in all blocks, free and lent
_most = 0  # bytes that were lent at once, as far as new blocks have shown


def _made(capacity: int) -> None:
    """There is a new block: let go of free ones if too many are, those of sizes that nobody has asked for longest."""
    global _held, _most
    with _lock:
        free = pool_bytes()
        _held += capacity
        _most = max(_most, _held - free)
        if free <= max(_most, LEAST):
            return
        for blocks in sorted(_all.values(), key=lambda blocks: blocks.used):
            while free > max(_most, LEAST) and (gone := blocks.let_go()):
                free, _held = free - gone, _held - gone


def _larger(capacity: int) -> Any:
    """A lease on a free block of the smallest size above `capacity`, and below twice that; or None."""
    fits = [blocks for size, blocks in list(_all.items()) if capacity < size < 2 * capacity and blocks.free]
    return next((lease for b in sorted(fits, key=lambda b: b.capacity) if (lease := b.lend()) is not None), None)


def pool_empty(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array like `numpy.empty`, on a block that an earlier array may have used."""
    size = shape if isinstance(shape, int) else math.prod(shape)
    nbytes = size * dtype.itemsize
    if nbytes < SMALL or dtype.hasobject:
        return np.empty(shape, dtype)
    blocks = _blocks_for(nbytes)
    if (lease := blocks.lend()) is None and (lease := _larger(blocks.capacity)) is None:
        lease = blocks.lend_new()
    return np.ndarray(shape, dtype, lease)


@functools.lru_cache(4096)
def _blocks_for(nbytes: int) -> _Blocks:
    """Those of the capacity that holds `nbytes`, one of four per power of two: nearly equal shapes share blocks.

    From 1 MiB on it is one of eight, for q, k and v side by side are 9/8 of a power of two. From 4 MiB on it is one of
    32: NumPy asks for huge pages there, of which one that is begun is taken whole.
    """
    unit = 1 << max(12, nbytes.bit_length() - (3 if nbytes < 1 << 20 else 4 if nbytes < 1 << 22 else 6))
    capacity = -(-nbytes // unit) * unit
    return _all.setdefault(capacity, _Blocks(capacity))


def pool_bytes() -> int:
    """Bytes in free blocks."""
    return sum(blocks.capacity * len(blocks.free) for blocks in list(_all.values()))  # a copy: threads may add sizes


def pool_clear() -> None:
    """Give all free blocks back to the system."""
    global _held
    with _lock:
        for blocks in list(_all.values()):
            while gone := blocks.let_go():
                _held -= gone
