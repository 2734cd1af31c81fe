"""The memories that a kernel can reach, each of which checks the accesses to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpulayers.emulator.context import Index
from gpulayers.emulator.errors import DataRace, Misaligned, OutOfBounds, Place, WriteToConstant
from gpulayers.emulator.indexing import positions, select
from gpulayers.emulator.races import ATOMIC, LEVEL_SHIFT, THREAD, Races, Shadow

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group
    from gpulayers.emulator.synchronise import BlockOrder

Array = np.ndarray


class Access(NamedTuple):
    """One memory instruction: what it does, how many bytes at once, and where it stands in the source."""

    size: int
    write: bool
    atomic: bool  # also volatile and relaxed accesses: they do not race with each other
    place: Place
    releases: bool = False  # it has a fence in itself
    cached: bool = False  # a load through the read-only cache, which does not see the launch's own stores

    @property
    def verb(self) -> str:
        """For messages."""
        return "store" if self.write and not self.atomic else "atomic" if self.atomic and self.write else "load"


class Region:
    """Memory with a name at an address. `data` starts at `origin`, a multiple of 16 at or below `start`."""

    between_blocks = True  # whether blocks share it

    def __init__(self, name: str, start: int, stop: int, data: Array, read_only: bool = False) -> None:
        self.name, self.start, self.stop, self.read_only = name, start, stop, read_only
        self.origin = start & ~15
        self.data = data
        self.shadow: Shadow | None = None
        self._views: dict[np.dtype, Array] = {}

    def view(self, dtype: np.dtype) -> Array:
        """The memory as elements of a dtype."""
        if dtype not in self._views:
            self._views[dtype] = self.data[: len(self.data) // dtype.itemsize * dtype.itemsize].view(dtype)
        return self._views[dtype]

    def contains(self, low: int, high: int) -> bool:
        """Whether all bytes from `low` to below `high` are inside."""
        return self.start <= low and high <= self.stop

    def locate(self, group: Group, address: Array, access: Access, index: Index) -> Array:
        """Byte positions in `data` of addresses, which are known to be inside."""
        return (address - np.uint64(self.origin)).view(np.int64)

    def describe(self, group: Group, address: int, thread: int) -> str:
        """An address in words."""
        return f"byte {address - self.start} of {self.name} ({self.stop - self.start} bytes)"

    def check(self, group: Group, where: Array, address: Array, access: Access, index: Index) -> Races | None:
        """Races. Returns what may be harmless: stores of a value that is there already, or that others store too."""
        if access.write and self.read_only:
            message = f"{access.verb} to {self.name}, which the kernel takes as const"
            raise group.error(WriteToConstant, message, access.place, int(positions(index)[0]))
        if self.shadow is None:
            return None
        return self._races(group, self.shadow, where, address, access, index)

    def _races(
        self, group: Group, shadow: Shadow, where: Array, address: Array, access: Access, index: Index
    ) -> Races | None:
        stamp = group.stamp[index]
        if group.launch.order is not None and self.between_blocks:
            self._order(group, group.launch.order, address, access, index)
        if access.cached:
            self._refuse_stale(group, shadow, where, address, access, index)
        if not access.write:
            race = shadow.load(where, access.size, stamp, access.atomic)
            if race is not None:
                self._report(group, race, address, access, index, "stored by")
            return None
        races = shadow.store(where, access.size, stamp, access.atomic)
        if races.loads is not None:
            self._report(group, races.loads, address, access, index, "loaded by")
        if races.stores is not None and access.atomic:
            self._report(group, races.stores, address, access, index, "stored by")
        return races if races.stores is not None or races.together is not None else None

    def _refuse_stale(
        self, group: Group, shadow: Shadow, where: Array, address: Array, access: Access, index: Index
    ) -> None:
        stale = shadow.written(where, access.size)
        if stale is not None:
            lane = int(np.flatnonzero(stale)[0])
            thread = int(positions(index)[lane])
            spot = self.describe(group, int(address[lane]), thread)
            message = f"load of {access.size} bytes at {spot} through the read-only cache (const __restrict__, __ldg)"
            raise group.error(DataRace, f"{message}, which this launch has written", access.place, thread)

    def _order(self, group: Group, order: BlockOrder, address: Array, access: Access, index: Index) -> None:
        """Atomic accesses may order blocks; after a plain store a fence must come anew."""
        if access.atomic:
            order.touch(group, address, index, access.write, access.releases)
        elif access.write:
            group.fenced[index] = False

    def _report(
        self, group: Group, race: tuple[Array, Array], address: Array, access: Access, index: Index, did: str
    ) -> None:
        lane = int(np.flatnonzero(race[0])[0])
        thread = int(positions(index)[lane])
        other = describe_word(group, int(race[1][lane]))
        where = self.describe(group, int(address[lane]), thread)
        message = f"race: {access.verb} of {access.size} bytes at {where}, {did} {other}, and nothing orders the two"
        raise group.error(DataRace, message, access.place, thread)

    def report_store(self, group: Group, lanes: Array, address: Array, access: Access, index: Index) -> None:
        """A store that changes a value which another thread stored, or stores at the same time."""
        lane = int(np.flatnonzero(lanes)[0])
        thread = int(positions(index)[lane])
        where = self.describe(group, int(address[lane]), thread)
        message = f"race: two threads store different values at {where}, and nothing orders the two"
        raise group.error(DataRace, message, access.place, thread)


def describe_word(group: Group, word: int) -> str:
    """The access that a shadow word stands for."""
    number = word & int(THREAD)
    block, thread = number >> group.shift, number & ((1 << group.shift) - 1)
    level = word >> LEVEL_SHIFT & 3
    among = ("", ", among others of its warp", ", among others of its block", ", among other blocks")[level]
    atomic = "atomically " if word & int(ATOMIC) else ""
    return (
        f"{atomic}block {group.launch.block_coordinates(block)} thread {group.launch.thread_coordinates(thread)}{among}"
    )


class Memory:
    """All regions, sorted by address, and the search for the one that an access meets."""

    def __init__(self, regions: list[Region]) -> None:
        self.regions = sorted(regions, key=lambda region: region.start)
        self.starts = np.array([region.start for region in self.regions], np.uint64)
        self.stops = np.array([region.stop for region in self.regions], np.uint64)

    def with_regions(self, more: list[Region]) -> Memory:
        """A memory with further regions."""
        return Memory([*self.regions, *more])

    def split(
        self, group: Group, address: Array, access: Access, index: Index
    ) -> Iterator[tuple[Region, Array, Array, Index]]:
        """(region, byte positions, addresses, threads) for each region that the addresses meet, checked for bounds
        and alignment."""
        low, high = int(address.min()), int(address.max())
        number = int(np.searchsorted(self.starts, np.uint64(low), "right")) - 1
        if number >= 0 and self.regions[number].contains(low, high + access.size):
            region = self.regions[number]
            self._check_alignment(group, region, address, access, index)
            yield region, region.locate(group, address, access, index), address, index
            return
        numbers = np.searchsorted(self.starts, address, "right") - 1
        inside = (numbers >= 0) & (address + np.uint64(access.size) <= self.stops[numbers])
        if not inside.all():
            raise self._out_of_bounds(group, ~inside, address, access, index)
        for one in np.unique(numbers):
            mask = numbers == one
            part = select(index, mask)
            assert part is not None
            region, chosen = self.regions[int(one)], address[mask]
            self._check_alignment(group, region, chosen, access, part)
            yield region, region.locate(group, chosen, access, part), chosen, part

    def _check_alignment(self, group: Group, region: Region, address: Array, access: Access, index: Index) -> None:
        if access.size == 1:
            return
        rest = (address & np.uint64(access.size - 1)) != 0
        if rest.any():
            lane = int(np.flatnonzero(rest)[0])
            thread = int(positions(index)[lane])
            where = region.describe(group, int(address[lane]), thread)
            message = f"misaligned {access.verb} of {access.size} bytes at {where}"
            raise group.error(Misaligned, message, access.place, thread)

    def _out_of_bounds(self, group: Group, outside: Array, address: Array, access: Access, index: Index):
        lane = int(np.flatnonzero(outside)[0])
        one = int(address[lane])
        if not self.regions:
            message = f"{access.verb} of {access.size} bytes at address {one:#x}: the kernel was given no memory"
            return group.error(OutOfBounds, f"out-of-bounds {message}", access.place, int(positions(index)[lane]))
        nearest = min(self.regions, key=lambda region: max(region.start - one, one - region.stop, 0))
        return group.out_of_bounds(nearest, outside, address, access, index)
