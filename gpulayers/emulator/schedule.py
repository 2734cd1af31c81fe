"""Which threads run next: SIMT divergence, reconvergence and barriers.

Threads that stand at the same basic block run together. Of several sets the one at the lowest block goes first, so
that those which left a loop or a branch early wait behind it for the others; threads spinning for others are passed
over from time to time. At a barrier, or at a warp instruction whose mask names lanes that are elsewhere, threads
wait; if in the end all threads wait, the kernel has diverged, and the error says who is missing and where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpulayers.emulator.blocks import Barrier, Block, Converge, Exit, Jump, Table
from gpulayers.emulator.context import Index
from gpulayers.emulator.errors import BarrierDivergence, EmulatorError, EndlessLoop, WarpDivergence
from gpulayers.emulator.indexing import count, join, positions, select, spread
from gpulayers.emulator.warp import FULL, present

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group

Array = np.ndarray
FAIRNESS = 4096  # after so many blocks the set that waits longest behind gets a turn
Moves = list[tuple[int, Index]]


class Scheduler:
    """Runs one group of blocks to the end. `executed` counts thread-instructions."""

    def __init__(self, group: Group, max_steps: int) -> None:
        self.group, self.blocks, self.max_steps = group, group.launch.code.blocks, max_steps
        self.everyone = slice(0, group.size, 1)
        self.ready: dict[int, list[Index]] = {0: [self.everyone]}
        self.parked: dict[int, list[Index]] = {}
        self.executed = self.steps = 0

    def run(self) -> None:
        """Until every thread has ended."""
        while True:
            while self.ready:
                behind = self.steps % FAIRNESS == FAIRNESS - 1
                number = max(self.ready) if behind else min(self.ready)
                self._advance(number, join(self.ready.pop(number)))
            if not self.parked:
                return
            if not self._release_ended_warps():
                raise self._deadlock()

    def _advance(self, number: int, index: Index) -> None:
        """Run one set of threads until it splits, waits, ends, or another set is due."""
        group, blocks = self.group, self.blocks
        while number < len(blocks):
            block = blocks[number]
            self.executed += block.length * count(index)
            self.steps += 1
            if self.steps > self.max_steps:
                raise self._endless(block, index)
            for step in block.steps:
                step(group, index)
            moves = self._follow(number, block, index)
            if len(moves) == 1 and not self._someone_is_due(moves[0][0]):
                number, index = moves[0]
                continue
            for target, part in moves:
                self.ready.setdefault(target, []).append(part)
            return
        group.exited[index] = True

    def _someone_is_due(self, target: int) -> bool:
        return bool(self.ready) and (min(self.ready) <= target or self.steps % FAIRNESS == FAIRNESS - 1)

    def _endless(self, block: Block, index: Index) -> EmulatorError:
        message = f"still running after {self.max_steps} steps: an endless loop?"
        return self.group.error(EndlessLoop, message, block.place, int(positions(index)[0]))

    def _follow(self, number: int, block: Block, index: Index) -> Moves:
        """Where the threads go after a block."""
        end = block.end
        if end is None:
            return [(number + 1, index)]
        if isinstance(end, Jump):
            return self._branch(end.predicate, end.negated, index, end.target, number + 1)
        if isinstance(end, Exit):
            return self._branch(end.predicate, end.negated, index, len(self.blocks), number + 1)
        if isinstance(end, Table):
            return self._table(end, index)
        moves: Moves = []
        if block.skip is not None:
            taken, passed = self._divide(block.skip[0], block.skip[1], index)
            moves = [(number + 1, passed)] if passed is not None else []
            if taken is None:
                return moves
            index = taken
        return [
            *moves,
            *(self._barrier(number, end, index) if isinstance(end, Barrier) else self._warp(number, end, index)),
        ]

    def _divide(self, predicate, negated: bool, index: Index) -> tuple[Index | None, Index | None]:
        mask = spread(predicate(self.group, index), count(index))
        mask = ~mask if negated else mask
        taken = select(index, mask)
        if taken is index:
            return index, None
        return taken, (index if taken is None else select(index, ~mask))

    def _branch(self, predicate, negated: bool, index: Index, target: int, following: int) -> Moves:
        if predicate is None:
            return [(target, index)]
        taken, passed = self._divide(predicate, negated, index)
        return [(where, part) for where, part in ((target, taken), (following, passed)) if part is not None]

    def _table(self, end: Table, index: Index) -> Moves:
        chosen = spread(end.selector(self.group, index), count(index))
        moves: Moves = []
        for one in np.unique(chosen):
            part = select(index, chosen == one)
            if part is not None:
                moves.append((end.targets[int(one)], part))
        return moves

    # Barriers of the block

    def _barrier(self, number: int, end: Barrier, index: Index) -> Moves:
        group = self.group
        index = join([*self.parked.pop(number, []), index])
        full = self._full(end, index)
        arrived = select(index, full)
        if arrived is not index:
            rest = index if arrived is None else select(index, ~full)
            if rest is not None:
                self.parked[number] = [rest]
        if arrived is None:
            return []
        group.pass_barrier(arrived)
        if end.reduce:
            self._reduce(end, arrived)
        return [(number + 1, arrived)]

    def _full(self, end: Barrier, index: Index) -> Array:
        """For each waiting thread whether its barrier has all the threads that it waits for."""
        group, length = self.group, count(index)
        which = end.number(group, index)
        if length == group.size and end.threads is None and not np.ndim(which):
            return np.ones(length, bool)
        key = group.block[index] * 16 + spread(which, length).astype(np.int64)
        waiting = np.bincount(key)[key]
        return waiting == (group.threads if end.threads is None else end.threads(group, index))

    def _reduce(self, end: Barrier, index: Index) -> None:
        group = self.group
        blocks = group.block[index]
        assert end.source is not None
        assert end.write is not None
        votes = spread(end.source(group, index), len(blocks))
        yes = np.bincount(blocks[votes], minlength=group.blocks)[blocks]
        there = np.bincount(blocks, minlength=group.blocks)[blocks]
        result = {"popc": yes.astype(np.uint32), "or": yes > 0, "and": yes == there}[end.reduce]
        end.write(group, index, result)

    # Instructions of the warp

    def _warp(self, number: int, end: Converge, index: Index) -> Moves:
        group = self.group
        index = join([*self.parked.pop(number, []), index])
        mask = end.step.mask(group, index)
        if not self._all_together(index, mask):
            ready, waiting = self._complete(end, index, spread(mask, count(index)))
            if waiting is not None:
                self.parked[number] = [waiting]
            if ready is None:
                return []
            index = ready
        end.step(group, index)
        return [(number + 1, index)]

    def _all_together(self, index: Index, mask: Array) -> bool:
        return count(index) == self.group.size and bool(np.all(mask == FULL))

    def _complete(self, end: Converge, index: Index, mask: Array) -> tuple[Index | None, Index | None]:
        """Split into threads whose masks are satisfied and those that must wait."""
        group = self.group
        own = (np.uint32(1) << group.lane[index].astype(np.uint32)).astype(np.uint32)
        outside = (mask & own) == 0
        if outside.any():
            lane = int(np.flatnonzero(outside)[0])
            message = f"{end.name} with mask {int(mask[lane]):#010x}, which does not name the lane that executes it"
            raise group.error(WarpDivergence, message, end.place, int(positions(index)[lane]))
        complete = (self._missing(end, index, mask)) == 0
        ready = select(index, complete)
        return ready, (None if ready is index else select(index, ~complete))

    def _missing(self, end: Converge, index: Index, mask: Array) -> Array:
        """The bits of lanes that the mask names, that exist, and that are not here."""
        group = self.group
        width = group.warp_width[index]
        existing = np.where(width == 32, np.int64(0xFFFFFFFF), (np.int64(1) << width) - 1).astype(np.uint32)
        missing = mask & existing & ~present(group, index)
        if end.step.passes_barrier and missing.any() and group.exited.any():  # __syncwarp passes over ended lanes
            missing &= ~self._ended(index)
        return missing

    def _ended(self, index: Index) -> Array:
        group, start = self.group, self.group.warp_start[index]
        ended = np.concatenate((group.exited, np.zeros(32, bool)))
        bits = np.zeros(len(start), np.uint32)
        for lane in range(32):
            bits |= np.where(ended[start + lane], np.uint32(1 << lane), np.uint32(0))
        return bits

    # What went wrong when everybody waits

    def _deadlock(self) -> EmulatorError:
        number = min(self.parked)
        index, end = join(self.parked[number]), self.blocks[number].end
        if isinstance(end, Converge):
            return self._warp_deadlock(end, index)
        assert isinstance(end, Barrier)
        group, first = self.group, int(positions(index)[0])
        block = int(group.block[first])
        here = np.zeros(group.size, bool)
        here[index] = True
        missing = np.flatnonzero((group.block == block) & ~here)
        message = f"waits at a barrier that {len(missing)} of the block's {group.threads} threads do not reach"
        if end.threads is not None:
            message = f"waits at a barrier of {int(np.max(end.threads(group, index)))} threads, which do not all come"
        message += f"; {self._whereabouts(int(missing[0]))}" if len(missing) else ""
        return group.error(BarrierDivergence, message, end.place, first)

    def _release_ended_warps(self) -> bool:
        """Lanes that ended while others waited at __syncwarp no longer hold them up."""
        for number in [key for key, parts in self.parked.items() if parts]:
            end = self.blocks[number].end
            if isinstance(end, Converge) and end.step.passes_barrier:
                index = join(self.parked[number])
                mask = spread(end.step.mask(self.group, index), count(index))
                if (self._missing(end, index, mask) == 0).any():
                    self.ready[number] = self.parked.pop(number)
                    return True
        return False

    def _warp_deadlock(self, end: Converge, index: Index) -> EmulatorError:
        group = self.group
        mask = spread(end.step.mask(group, index), count(index))
        missing = int(self._missing(end, index, mask)[0])
        first = int(positions(index)[0])
        lane = (missing & -missing).bit_length() - 1
        where = self._whereabouts(int(group.warp_start[first]) + lane)
        message = f"{end.name} with mask {int(mask[0]):#010x} waits for lane {lane}, which does not come; {where}"
        return group.error(WarpDivergence, message, end.place, first)

    def _whereabouts(self, thread: int) -> str:
        group = self.group
        name = f"thread {group.launch.thread_coordinates(int(group.thread[thread]))}"
        if group.exited[thread]:
            return f"{name} has ended"
        for number, parts in self.parked.items():
            if any((positions(part) == thread).any() for part in parts):
                return f"{name} waits at {self.blocks[number].place}"
        return f"{name} is elsewhere"
