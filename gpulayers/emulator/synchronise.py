"""Order between blocks: what one block wrote before a fence and an atomic, another may read after the same atomic.

The atomics (and volatile or acquire loads) on one address follow each other, so each gets a number. A thread that
passed a fence since its last store *releases* at its atomic: what its block did in earlier epochs, and what it did
itself, becomes visible to every block that *acquires*, by an atomic on the address with a higher number. This is the
message-passing pattern of the PTX memory model, and enough for "the last block finishes the sum" and for barriers
over the grid; the second fence, on the acquiring side, is not insisted on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulayers.emulator.context import Index
from gpulayers.emulator.indexing import positions
from gpulayers.emulator.races import EPOCH, LEVEL_SHIFT, THREAD

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group

Array = np.ndarray
MOST_ADDRESSES, MOST_ROUNDS = 64, 64
UNSEEN = np.iinfo(np.int64).max


class _Address:
    """The history of one address: per block its releases (a row for each) and its first and last acquisition."""

    def __init__(self, blocks: int) -> None:
        self.number = 0
        self.count = np.zeros(blocks, np.int64)  # releases of each block
        self.released: list[Array] = []  # rounds of (number, stamp), 0 for none
        self.acquired = np.zeros(blocks, np.int64)  # highest number seen
        self.stamp = np.full(blocks, UNSEEN)  # who saw it first: epoch and thread
        self.blocks = blocks

    def release(self, numbers: Array, blocks: Array, stamps: Array) -> None:
        for block in np.unique(blocks):
            last = np.flatnonzero(blocks == block)[-1]
            turn = min(int(self.count[block]), MOST_ROUNDS - 1)
            self.count[block] += 1
            if turn == len(self.released):
                self.released.append(np.zeros((2, self.blocks), np.int64))
            self.released[turn][:, block] = numbers[last], stamps[last]

    def acquire(self, numbers: Array, blocks: Array, stamps: Array) -> None:
        self.acquired[blocks] = np.maximum(self.acquired[blocks], numbers)
        first = np.unique(blocks, return_index=True)
        fresh = self.stamp[first[0]] == UNSEEN
        self.stamp[first[0][fresh]] = stamps[first[1][fresh]]

    def orders(self, old: Array, new: Array, old_block: Array, new_block: Array) -> Array:
        """Where an old access is visible to a new one."""
        seen = self.stamp[new_block]
        here = (seen != UNSEEN) & (((new & THREAD) == (seen & THREAD)) | ((new & EPOCH) > (seen & EPOCH)))
        result = np.zeros(np.shape(old), bool)
        for numbers, stamps in self.released:
            number, stamp = numbers[old_block], stamps[old_block]
            covered = ((old & EPOCH) < (stamp & EPOCH)) | ((old & THREAD) == (stamp & THREAD))
            result |= (number > 0) & (number <= self.acquired[new_block]) & covered
        return result & here


class BlockOrder:
    """The order between the blocks of a launch, as far as fences and atomics make one."""

    def __init__(self, blocks: int, shift: int) -> None:
        self.blocks, self.shift = blocks, shift
        self.addresses: dict[int, _Address] = {}

    def touch(self, group: Group, addresses: Array, index: Index, releases: bool, fenced_always: bool) -> None:
        """Atomic or volatile accesses by `index`: they acquire, and release if their threads passed a fence."""
        stamps = group.stamp[index]
        blocks = (stamps & THREAD) >> np.int64(self.shift)
        fenced = np.ones(len(stamps), bool) if fenced_always else group.fenced[positions(index)]
        for address in np.unique(addresses)[:MOST_ADDRESSES]:
            key = int(address)
            if key not in self.addresses and len(self.addresses) >= MOST_ADDRESSES:
                return
            history = self.addresses.setdefault(key, _Address(self.blocks))
            lanes = addresses == address
            numbers = history.number + 1 + np.arange(int(lanes.sum()))
            history.number = int(numbers[-1])
            history.acquire(numbers, blocks[lanes], stamps[lanes])
            out = fenced[lanes] & releases
            if out.any():
                history.release(numbers[out], blocks[lanes][out], stamps[lanes][out])

    def __call__(self, old: Array, new: Array) -> Array:
        """Which pairs of accesses, of different blocks, are ordered. Merged words of several blocks never are."""
        old_block = (old & THREAD) >> np.int64(self.shift)
        new_block = (new & THREAD) >> np.int64(self.shift)
        result = np.zeros(np.shape(old), bool)
        for history in self.addresses.values():
            result |= history.orders(old, new, old_block, new_block)
        return result & (((old >> np.int64(LEVEL_SHIFT)) & 3) != 3)
