"""The state of the threads that run together: all threads of some consecutive blocks."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import numpy as np

from gpulayers.emulator.context import Index
from gpulayers.emulator.errors import EmulatorError, OutOfBounds, Place
from gpulayers.emulator.indexing import positions
from gpulayers.emulator.races import EPOCH_SHIFT, USED, WARP_SHIFT
from gpulayers.emulator.regions import Access, Region
from gpulayers.emulator.spaces import LocalRegion, SharedRegion
from gpulayers.emulator.specials import SPECIALS

if TYPE_CHECKING:
    from gpulayers.emulator.launch import Launch

Array = np.ndarray


_spare = threading.local()  # registers' memory, used again by the next group: fresh pages cost more than the work


def workspace(size: int, dtypes: list[np.dtype]) -> list[Array]:
    """An array of `size` elements for each dtype, in memory that this thread keeps. The contents are left over."""
    if getattr(_spare, "made_for", None) == size and _spare.dtypes is dtypes:
        return _spare.arrays
    strides = [-(-size * dtype.itemsize // 64) * 64 for dtype in dtypes]
    total = sum(strides)
    buffer = getattr(_spare, "buffer", None)
    if buffer is None or len(buffer) < total:
        buffer = np.zeros(total, np.uint8)
    starts = itertools.accumulate(strides, initial=0)
    pieces = [buffer[start : start + size * dtype.itemsize] for start, dtype in zip(starts, dtypes, strict=False)]
    _spare.arrays = [piece.view(dtype) for piece, dtype in zip(pieces, dtypes, strict=True)]
    _spare.buffer, _spare.made_for, _spare.dtypes = buffer, size, dtypes
    return _spare.arrays


class Group:
    """Registers, shared and local memory of blocks `first` to `first + blocks - 1`, and each thread's place."""

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        self.launch, self.first, self.blocks = launch, first, blocks
        self.threads = threads = launch.threads
        self.size = blocks * threads
        number = np.arange(self.size, dtype=np.int64)
        self.block, self.thread = number // threads, number % threads
        self.lane = self.thread & 31
        self.warp_start = number - self.lane  # position of lane 0
        self.warp_width = np.minimum(32, threads - (self.thread - self.lane))  # lanes that exist in this warp
        self.shift = launch.shift
        self.stamp = ((self.block + first) << self.shift) | self.thread | np.int64(USED)
        self.exited = np.zeros(self.size, bool)
        self.fenced = np.zeros(self.size, bool)  # has passed a memory fence since its last store
        self._make_memory()
        self.registers = self._make_registers()

    def _make_memory(self) -> None:
        layout, launch = self.launch.layout, self.launch
        more: list[Region] = []
        self.shared = SharedRegion(layout.total, layout.stride, self.blocks, self.shift, layout.gaps)
        if layout.names:
            more.append(self.shared)
        if launch.code.local_size:
            more.append(LocalRegion(launch.code.local_size, self.size))
        self.memory = launch.memory.with_regions(more) if more else launch.memory

    def _make_registers(self) -> list[Array]:
        context = self.launch.code.context
        registers = workspace(self.size, context.dtypes)
        for name, slot in context.specials.items():
            registers[slot][:] = SPECIALS[name](self)
        return registers

    def pass_barrier(self, index: Index) -> None:
        """These threads have passed a block barrier."""
        self.stamp[index] += np.int64(1 << EPOCH_SHIFT)

    def pass_warp_barrier(self, index: Index) -> None:
        """These threads have passed __syncwarp; the counter wraps within its nine bits."""
        field = np.int64(0x1FF << WARP_SHIFT)
        stamp = self.stamp[index]
        self.stamp[index] = (stamp & ~field) | ((stamp + np.int64(1 << WARP_SHIFT)) & field)

    def error(self, kind: type[EmulatorError], message: str, place: Place, thread: int) -> EmulatorError:
        """An exception with kernel, block and thread; `thread` is a position in the group."""
        launch = self.launch
        return kind(
            message,
            kernel=launch.kernel_name,
            block=launch.block_coordinates(int(self.block[thread]) + self.first),
            thread=launch.thread_coordinates(int(self.thread[thread])),
            place=place,
        )

    def out_of_bounds(
        self, region: Region, outside: Array, address: Array, access: Access, index: Index
    ) -> EmulatorError:
        """The exception for the first lane outside."""
        lane = int(np.flatnonzero(outside)[0])
        thread = int(positions(index)[lane])
        where = region.describe(self, int(address[lane]), thread)
        message = f"out-of-bounds {access.verb} of {access.size} bytes at {where}"
        return self.error(OutOfBounds, message, access.place, thread)
