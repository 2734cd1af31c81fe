"""Special registers: what each thread reads from `%tid.x` and its like."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group

Value = np.ndarray | int
Special = Callable[["Group"], Value]
WORD = np.uint64(0xFFFFFFFF)


def _coordinate(linear: Any, size: tuple[int, int, int], axis: int) -> Any:
    x, y, _ = size
    return (linear % x, linear // x % y, linear // (x * y))[axis]


def _axis(axis: int) -> dict[str, Special]:
    letter = "xyz"[axis]
    return {
        f"%tid.{letter}": lambda group: _coordinate(group.thread, group.launch.block, axis),
        f"%ctaid.{letter}": lambda group: _coordinate(group.block + group.first, group.launch.grid, axis),
        f"%ntid.{letter}": lambda group: group.launch.block[axis],
        f"%nctaid.{letter}": lambda group: group.launch.grid[axis],
    }


def _bit(group: Group) -> np.ndarray:
    return np.uint64(1) << group.lane.astype(np.uint64)


SPECIALS: dict[str, Special] = {
    **_axis(0),
    **_axis(1),
    **_axis(2),
    "%laneid": lambda group: group.lane,
    "%warpid": lambda group: group.thread >> 5,
    "%nwarpid": lambda group: (group.threads + 31) // 32,
    "%smid": lambda group: 0,
    "%nsmid": lambda group: 1,
    "%gridid": lambda group: 0,
    "%dynamic_smem_size": lambda group: group.launch.layout.dynamic,
    "%total_smem_size": lambda group: group.launch.layout.total,
    "%lanemask_eq": _bit,
    "%lanemask_lt": lambda group: _bit(group) - np.uint64(1),
    "%lanemask_le": lambda group: _bit(group) * np.uint64(2) - np.uint64(1),
    "%lanemask_gt": lambda group: ~(_bit(group) * np.uint64(2) - np.uint64(1)) & WORD,
    "%lanemask_ge": lambda group: ~(_bit(group) - np.uint64(1)) & WORD,
    # Time stands still here: nothing can be measured, and loops that wait for it would not end.
    "%clock": lambda group: 0,
    "%clock_hi": lambda group: 0,
    "%clock64": lambda group: 0,
    "%globaltimer": lambda group: 0,
}
WIDE = ("%clock64", "%globaltimer")
