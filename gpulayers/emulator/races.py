"""Shadow memory: who wrote and who read each cell last, and whether anything orders a new access after that.

One 64-bit word describes an access:

    bits  0-31  thread (block number << shift | thread in block)
    bits 32-50  epoch: how many block barriers the thread has passed
    bits 51-59  warp epoch: how many __syncwarp it has passed, modulo 512
    bit  60     atomic (or volatile) access
    bits 61-62  level: 0 one thread, 1 several threads of a warp, 2 several warps of a block, 3 several blocks
    bit  63     set, so that 0 means "never" and the tables of large arrays are pages that nobody has touched

Within a block, accesses of different epochs are ordered by a barrier; within a warp,
those of different warp epochs by `__syncwarp`. Different blocks are ordered by nothing but a release and an acquire
(synchronise.py). The idea is that of happens-before race detectors, cut down to what barriers can express.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.tables import Table, new_table

Array = np.ndarray
Ordered = Callable[
    [np.ndarray, np.ndarray], np.ndarray
]  # (old words, new stamps) -> ordered by a release and an acquire
NEVER = 0
USED = -(1 << 63)
THREAD = np.int64((1 << 32) - 1)
EPOCH_SHIFT, WARP_SHIFT, LEVEL_SHIFT = 32, 51, 61
EPOCH = np.int64(((1 << 19) - 1) << EPOCH_SHIFT)
WARP_EPOCH = np.int64(((1 << 9) - 1) << WARP_SHIFT)
ATOMIC = np.int64(1 << 60)
LEVEL = np.int64(3 << LEVEL_SHIFT)
MAX_EPOCH = (1 << 19) - 1


def relation(word: Array, stamp: Array, shift: int, ordered_blocks: Ordered | None = None) -> Array | None:
    """Level of the conflict between recorded accesses and new ones: 0 where they are ordered; None: 0 everywhere.

    `ordered_blocks(old, new)`: which pairs of threads of different blocks a release and an acquire have ordered.
    """
    word = word & ~ATOMIC
    difference = word ^ stamp
    clean = (word >= 0) | (difference == 0)
    if clean.all():
        return None
    thread = difference & THREAD
    level = (word >> np.int64(LEVEL_SHIFT)) & np.int64(3)
    other_block = (thread >> np.int64(shift)) != 0
    several_blocks = other_block | (level == 3)
    if ordered_blocks is not None and several_blocks.any():
        several_blocks &= ~ordered_blocks(word, stamp)
        other_block_ordered = (other_block | (level == 3)) & ~several_blocks
    else:
        other_block_ordered = None
    several_warps = (level == 2) | ((thread >> np.int64(5)) != 0)
    several_threads = (level == 1) | (thread != 0)
    inside_warp = np.where(((difference & WARP_EPOCH) == 0) & several_threads, 1, 0)
    inside_block = np.where((difference & EPOCH) != 0, 0, np.where(several_warps, 2, inside_warp))
    if other_block_ordered is not None:
        inside_block = np.where(other_block_ordered, 0, inside_block)
    result = np.where(several_blocks, 3, inside_block)
    result[clean] = 0
    return result if result.any() else None


class Shadow:
    """The words of the last writers and readers of a memory, one for each cell of 1 to 16 bytes.

    Cells are as large as the largest access so far allows, and are split when a smaller access comes."""

    def __init__(self, size: int, shift: int, ordered_blocks: Ordered | None = None) -> None:
        self.size, self.shift = size, shift  # shift: bits of a thread's number within its block
        self.cell = -1  # log2 of the cell's size
        self.writer: Table = np.empty(0, np.int64)
        self.reader: Table = self.writer
        self.ordered_blocks = ordered_blocks

    def _fit(self, size: int) -> None:
        wanted = min(4, size.bit_length() - 1)
        if self.cell < 0:
            self.cell = wanted
            cells = (self.size >> wanted) + 1
            self.writer, self.reader = new_table(cells), new_table(cells)
        elif wanted < self.cell:
            times = 1 << (self.cell - wanted)
            self.writer, self.reader = self.writer.repeat(times), self.reader.repeat(times)
            self.cell = wanted

    def cells(self, where: Array, size: int) -> list[Array]:
        """The cells that accesses of `size` bytes at byte positions `where` touch."""
        self._fit(size)
        first = where >> np.int64(self.cell)
        return [first + np.int64(k) if k else first for k in range(max(1, size >> self.cell))]

    def unwritten(self, where: Array, size: int) -> Array | None:
        """Where something was never written; None if nowhere."""
        result = None
        for cell in self.cells(where, size):
            never = self.writer.take(cell) >= 0
            if never.any():
                result = never if result is None else result | never
        return result

    def written(self, where: Array, size: int) -> Array | None:
        """Where something was written; None if nowhere."""
        result = np.zeros(where.shape, bool)
        for cell in self.cells(where, size):
            result |= self.writer.take(cell) < 0
        return result if result.any() else None

    def _conflict(self, words: Array, stamp: Array, atomic: bool) -> Array | None:
        level = relation(words, stamp, self.shift, self.ordered_blocks)
        if level is None:
            return None
        conflict = level > 0
        if atomic:
            conflict &= (words & ATOMIC) == 0
        return conflict if conflict.any() else None

    def _record(self, table: Table, cell: Array, stamp: Array, flag: np.int64, merge: bool) -> Array | None:
        """Enter the access; returns where another thread entered the same cell at the same time.

        `merge` keeps word of the accesses that are not ordered before this one, by raising the level."""
        entry = stamp | flag
        if merge:
            level = relation(table.take(cell), stamp, self.shift, self.ordered_blocks)
            if level is not None:
                entry = entry | (level.astype(np.int64) << np.int64(LEVEL_SHIFT))
        table[cell] = entry
        found = table.take(cell)
        clash = (found & THREAD) != (stamp & THREAD)
        if not clash.any():
            return None
        if merge:
            self._raise_level(table, cell[clash], stamp[clash] | flag)
        return clash

    def _raise_level(self, table: Table, cell: Array, entry: Array) -> None:
        """Several threads touched these cells in one instruction: record the widest level among them."""
        found = table.take(cell)
        level = relation(found, entry & ~ATOMIC, self.shift)
        if level is None:
            return
        order = np.argsort(level, kind="stable")  # of equal cells the last assignment stays: the widest level
        word = entry[order] & ~LEVEL | (level[order].astype(np.int64) << np.int64(LEVEL_SHIFT))
        table[cell[order]] = word

    def load(self, where: Array, size: int, stamp: Array, atomic: bool) -> tuple[Array, Array] | None:
        """Record loads; returns (mask, words) of those that race with a store, or None."""
        race = None
        for cell in self.cells(where, size):
            words = self.writer.take(cell)
            conflict = self._conflict(words, stamp, atomic)
            if conflict is not None and race is None:
                race = (conflict, words)
            if not atomic:
                self._record(self.reader, cell, stamp, np.int64(0), merge=True)
        return race

    def store(self, where: Array, size: int, stamp: Array, atomic: bool) -> Races:
        """Record stores or atomics; returns what races with an earlier store, an earlier load, or each other."""
        races = Races()
        flag = ATOMIC if atomic else np.int64(0)
        for cell in self.cells(where, size):
            words, readers = self.writer.take(cell), self.reader.take(cell)
            conflict = self._conflict(words, stamp, atomic)
            if conflict is not None and races.stores is None:
                races.stores = (conflict, words)
            conflict = self._conflict(readers, stamp, False)
            if conflict is not None and races.loads is None:
                races.loads = (conflict, readers)
            clash = self._record(self.writer, cell, stamp, flag, merge=atomic)
            if not atomic:
                self.reader[cell] = NEVER
                if clash is not None:
                    races.together = clash if races.together is None else races.together | clash
        return races


class Races:
    """What a store races with: each is None, or (mask over the lanes, words of the other accesses)."""

    __slots__ = ("loads", "stores", "together")

    def __init__(self) -> None:
        self.stores: tuple[Array, Array] | None = None
        self.loads: tuple[Array, Array] | None = None
        self.together: Array | None = None
