"""The small memories: shared, local, and the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulayers.emulator.context import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Index
from gpulayers.emulator.errors import UninitialisedRead
from gpulayers.emulator.indexing import positions
from gpulayers.emulator.races import Races, Shadow
from gpulayers.emulator.regions import Access, Region

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group

Array = np.ndarray


class SharedRegion(Region):
    """Every block's shared memory, one behind the other; addresses are offsets within a block's own."""

    between_blocks = False

    def __init__(self, size: int, stride: int, blocks: int, shift: int, gaps: Array | None) -> None:
        data = np.full(blocks * stride + 16, 0xFF, np.uint8)
        super().__init__("shared memory", SHARED_WINDOW, SHARED_WINDOW + size, data)
        self.size, self.stride, self.gaps = size, stride, gaps
        self.shadow = Shadow(blocks * stride, shift)

    def locate(self, group: Group, address: Array, access: Access, index: Index) -> Array:
        offset = (address - np.uint64(SHARED_WINDOW)).view(np.int64)
        if self.gaps is not None:
            outside = self.gaps.take(offset) | self.gaps.take(offset + np.int64(access.size - 1))
            if outside.any():
                raise group.out_of_bounds(self, outside, address, access, index)
        return offset + group.block[index] * np.int64(self.stride)

    def describe(self, group: Group, address: int, thread: int) -> str:
        offset = address - SHARED_WINDOW
        name = group.launch.layout.name_at(offset)
        return f"byte {offset} of shared memory ({self.size} bytes{', ' + name if name else ''})"

    def check(self, group: Group, where: Array, address: Array, access: Access, index: Index) -> Races | None:
        assert self.shadow is not None
        if not access.write or access.atomic:
            never = self.shadow.unwritten(where, access.size)
            if never is not None:
                lane = int(np.flatnonzero(never)[0])
                thread = int(positions(index)[lane])
                spot = self.describe(group, int(address[lane]), thread)
                message = f"{access.verb} of {access.size} bytes at {spot}, where nothing was stored yet"
                raise group.error(UninitialisedRead, message, access.place, thread)
        if not group.launch.check_races:
            self.shadow.store(where, access.size, group.stamp[index], True)
            return None
        return self._races(group, self.shadow, where, address, access, index)


class LocalRegion(Region):
    """Every thread's local memory, one behind the other."""

    def __init__(self, size: int, threads: int) -> None:
        self.stride = (size + 15) & ~15
        super().__init__(
            "local memory", LOCAL_WINDOW, LOCAL_WINDOW + size, np.full(threads * self.stride, 0xFF, np.uint8)
        )

    def locate(self, group: Group, address: Array, access: Access, index: Index) -> Array:
        offset = (address - np.uint64(LOCAL_WINDOW)).view(np.int64)
        return offset + positions(index) * np.int64(self.stride)


class ParameterRegion(Region):
    """The kernel's parameters, the same for all threads."""

    def __init__(self, data: Array) -> None:
        super().__init__("the parameters", PARAM_WINDOW, PARAM_WINDOW + len(data), data, read_only=True)
