"""Run a decoded kernel over its grid, some blocks at a time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from gpulayers.emulator.allocation import Allocation
from gpulayers.emulator.blocks import Code
from gpulayers.emulator.errors import Coordinates, LaunchError
from gpulayers.emulator.group import Group
from gpulayers.emulator.layout import SHARED_GAP, parameter_offsets
from gpulayers.emulator.races import Shadow
from gpulayers.emulator.regions import Memory, Region
from gpulayers.emulator.schedule import Scheduler
from gpulayers.emulator.spaces import ParameterRegion
from gpulayers.emulator.synchronise import BlockOrder

Array = np.ndarray


@dataclass
class Limits:
    """What the emulated device refuses, and how it works. `threads_together`: threads that run at once."""

    threads_per_block: int = 1024
    grid: Coordinates = (2**31 - 1, 65535, 65535)
    block: Coordinates = (1024, 1024, 64)
    shared_default: int = 48 << 10
    shared_most: int = 227 << 10
    threads_together: int = 16384
    max_steps: int = 1_000_000


limits = Limits()


@dataclass(slots=True)
class Span:
    """Memory that a kernel was given."""

    name: str
    start: int
    stop: int
    allocation: Allocation
    const: bool


@dataclass(slots=True)
class Layout:
    """Shared memory of one block in this launch; `gaps` marks offsets that belong to no variable."""

    total: int
    stride: int
    dynamic: int
    gaps: Array | None
    names: list[tuple[int, int, str]]

    def name_at(self, offset: int) -> str:
        """The variable at an offset, or the one before it, for messages."""
        mangled = next((name for start, _, name in reversed(self.names) if start <= offset), "")
        local = re.search(r"E\d+(\w+?)(?:_\d+)?$", mangled) if mangled.startswith("_ZZ") else None
        return local[1] if local else mangled


def shared_layout(code: Code, dynamic: int) -> Layout:
    """Static variables first, then the dynamic part; the spaces between them are out of bounds."""
    shared = code.shared
    names = [(start, start + size, name) for name, (start, size) in shared.offsets.items()]
    total = shared.static
    if shared.dynamic_names:
        total = shared.dynamic_offset + dynamic
        names.append((shared.dynamic_offset, total, shared.dynamic_names[0]))
    gaps = None
    if names:
        total = max(stop for _, stop, _ in names)
        gaps = np.ones(total + SHARED_GAP, bool)
        for start, stop, _ in names:
            gaps[start:stop] = False
    return Layout(total, -(-(total + SHARED_GAP) // 16) * 16, dynamic, gaps, names)


def regions(spans: list[Span], shift: int, races: bool, order: BlockOrder | None) -> list[Region]:
    """Regions for the spans; overlapping ones become one, which is read-only if all of them are."""
    found: list[Region] = []
    for span in sorted((one for one in spans if one.stop > one.start), key=lambda one: one.start):
        last = found[-1] if found else None
        if last is not None and span.start < last.stop:
            last.stop = max(last.stop, span.stop)
            last.name = f"{last.name}, {span.name}"
            last.read_only = last.read_only and span.const
            last.data = _bytes(span.allocation, last.origin, last.stop)
        else:
            data = _bytes(span.allocation, span.start & ~15, span.stop)
            found.append(Region(span.name, span.start, span.stop, data, span.const))
    for region in found:
        if races and not region.read_only:
            region.shadow = Shadow(len(region.data), shift, order)
    return found


def _bytes(allocation: Allocation, start: int, stop: int) -> Array:
    """A region's bytes; up to 15 behind its end, where the block has them, so that every dtype has whole elements."""
    end = min(-(-stop // 16) * 16, allocation.address + allocation.size)
    return allocation.data[start - allocation.address : end - allocation.address]


class Launch:
    """One launch: sizes, parameters, memory. `run` executes it and returns the number of thread-instructions."""

    def __init__(
        self, code: Code, grid: Coordinates, block: Coordinates, values: list[bytes], spans: list[Span],
        shared: int, shared_limit: int, kernel_name: str, check_races: bool = True,
    ) -> None:  # fmt: skip
        self.code, self.grid, self.block, self.kernel_name, self.check_races = (
            code,
            grid,
            block,
            kernel_name,
            check_races,
        )
        self.threads = math.prod(block)
        self.shift = max(5, (self.threads - 1).bit_length())
        self._check_sizes(shared, shared_limit)
        self.layout = shared_layout(code, shared)
        self.parameters = self._parameters(values)
        self.order = BlockOrder(math.prod(grid), self.shift) if code.has_fences and check_races else None
        self.memory = Memory([*regions(spans, self.shift, check_races, self.order), ParameterRegion(self.parameters)])

    def _check_sizes(self, shared: int, shared_limit: int) -> None:
        problems = [
            (f"block {self.block} has {self.threads} threads", self.threads > limits.threads_per_block),
            (f"block {self.block}", any(map(int.__gt__, self.block, limits.block))),
            (f"grid {self.grid}", any(map(int.__gt__, self.grid, limits.grid))),
            (f"{shared} bytes of dynamic shared memory", shared < 0),
        ]
        for problem, wrong in problems:
            if wrong:
                raise LaunchError(f"{problem}: the device refuses it (invalid value)", kernel=self.kernel_name)
        if math.prod(self.grid) << self.shift > 1 << 32:
            raise LaunchError(f"grid {self.grid} is too large for the emulator", kernel=self.kernel_name)
        static = self.code.shared.declared
        if shared > shared_limit or static + shared > limits.shared_most:
            message = f"{shared} bytes of dynamic and {static} of static shared memory; the limit is {shared_limit}"
            remedy = "raise it through kernel.max_dynamic_shared_size_bytes"
            raise LaunchError(f"{message} ({remedy})", kernel=self.kernel_name)

    def _parameters(self, values: list[bytes]) -> Array:
        offsets, size = parameter_offsets(self.code.parameters)
        buffer = np.zeros(size + 16, np.uint8)
        for offset, value in zip(offsets, values, strict=True):
            buffer[offset : offset + len(value)] = np.frombuffer(value, np.uint8)
        return buffer

    def block_coordinates(self, number: int) -> Coordinates:
        """(x, y, z) of a block."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    def thread_coordinates(self, number: int) -> Coordinates:
        """(x, y, z) of a thread in its block."""
        x, y, _ = self.block
        return number % x, number // x % y, number // (x * y)

    def run(self) -> int:
        """Execute all blocks."""
        blocks, executed = math.prod(self.grid), 0
        together = max(1, limits.threads_together // self.threads)
        with np.errstate(all="ignore"):
            for first in range(0, blocks, together):
                scheduler = Scheduler(Group(self, first, min(together, blocks - first)), limits.max_steps)
                scheduler.run()
                executed += scheduler.executed
        return executed
