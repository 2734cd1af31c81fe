"""Host memory whose blocks are used again: the pool behind `backend.empty` on NumPy.

A large fresh array costs a page fault for each 4 KiB the first time it is written, and the allocator gives the memory
back to the system when the array dies, so every training step would pay anew. Here a block stays mapped: a `_Lease` is
the `base` of the array and of all views on it, and when the last of them dies the block returns to the free list.
"""

import math
from collections import defaultdict

import numpy as np

SMALL = 1 << 15  # below 32 KiB the allocator keeps its memory anyway, and is faster than the pool
ALIGNMENT = 64  # a cache line, and the widest vector load

_free: defaultdict[int, list[np.ndarray]] = defaultdict(list)  # capacity in bytes -> blocks that nobody uses


class _Lease:
    """Owner of one block for as long as an array looks at it. NumPy reads `__array_interface__`."""

    __slots__ = ("__array_interface__", "block")

    def __init__(self, block: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.block = block
        address = block.ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address + -address % ALIGNMENT, False),
        }

    def __del__(self) -> None:
        _free[self.block.nbytes].append(self.block)


def pool_empty(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array like `numpy.empty`, on a block that an earlier array may have used."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALL or dtype.kind not in "fiub":  # bfloat16 and the like have no name in the array interface
        return np.empty(shape, dtype)
    blocks = _free[capacity := _capacity(nbytes + ALIGNMENT)]
    try:
        block = blocks.pop()  # one call, so that two threads cannot get the same block
    except IndexError:
        block = np.empty(capacity, np.uint8)
    return np.asarray(_Lease(block, shape, dtype))


def _capacity(nbytes: int) -> int:
    """Rounded up to one of four sizes per power of two, so that nearly equal shapes share blocks."""
    unit = 1 << max(12, nbytes.bit_length() - 3)
    return -(-nbytes // unit) * unit


def pool_bytes() -> int:
    """Bytes in free blocks."""
    return sum(size * len(blocks) for size, blocks in list(_free.items()))  # a copy: threads may add sizes meanwhile


def pool_clear() -> None:
    """Give all free blocks back to the system."""
    _free.clear()
