"""How the emulated device works: architecture, race checks, and a record of launches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpulayers.emulator.errors import Coordinates
from gpulayers.emulator.launch import limits

SHARED_MOST = {"75": 64 << 10, "80": 163 << 10, "86": 99 << 10, "89": 99 << 10, "90": 227 << 10, "100": 227 << 10}


@dataclass
class Settings:
    """`arch`: the virtual architecture that NVRTC compiles for. `check_races`: off makes kernels faster."""

    arch: str = "compute_75"
    check_races: bool = True


class LaunchRecord(NamedTuple):
    """One kernel launch. `instructions` counts PTX instructions over all threads."""

    kernel: str
    grid: Coordinates
    block: Coordinates
    shared_mem: int
    instructions: int
    seconds: float


current = Settings()
_records: list[list[LaunchRecord]] = []


def compute_capability() -> str:
    """Of the emulated device, as CuPy writes it: "75", "90"."""
    return current.arch.removeprefix("compute_").rstrip("af")


def shared_most() -> int:
    """Bytes of shared memory that a block can have when it asks for more than 48 KB."""
    return min(limits.shared_most, SHARED_MOST.get(compute_capability(), 99 << 10))


@contextlib.contextmanager
def using(
    *, arch: str | None = None, check_races: bool | None = None, max_steps: int | None = None
) -> Iterator[Settings]:
    """Change settings for a while: `with using(arch="compute_90"): ...`.

    `max_steps`: how many basic blocks a group of thread blocks may execute before it counts as an endless loop."""
    before = (current.arch, current.check_races)
    steps = limits.max_steps
    if max_steps is not None:
        limits.max_steps = max_steps
    if arch is not None:
        current.arch = arch
    if check_races is not None:
        current.check_races = check_races
    try:
        yield current
    finally:
        current.arch, current.check_races = before
        limits.max_steps = steps


@contextlib.contextmanager
def record_launches() -> Iterator[list[LaunchRecord]]:
    """A list to which every launch in the `with` block is added."""
    records: list[LaunchRecord] = []
    _records.append(records)
    try:
        yield records
    finally:
        _records[:] = [other for other in _records if other is not records]


def record(one: LaunchRecord) -> None:
    """Called by the launch itself."""
    for records in _records:
        records.append(one)
