"""Instructions in which the lanes of a warp exchange values: shuffles, votes, matches, reductions.

The scheduler runs them when every lane that the mask names has arrived (schedule.py); here they may assume that.
Reading from a lane that does not take part is an error: the device would return an undefined value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpulayers.emulator.context import Context, Index, Reader, Step
from gpulayers.emulator.errors import WarpDivergence
from gpulayers.emulator.indexing import count, positions, spread
from gpulayers.emulator.program import Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray
FULL = np.uint32(0xFFFFFFFF)


class WarpStep(NamedTuple):
    """A step for which the lanes named by `mask` must be together; `passes_barrier`: it is __syncwarp itself."""

    run: Step
    mask: Reader
    passes_barrier: bool = False

    def __call__(self, group, index: Index) -> None:
        self.run(group, index)


def ballot(group, index: Index, votes: Array) -> Array:
    """For each thread of `index` the bits of its warp's lanes that vote yes."""
    bits = np.where(votes, np.left_shift(np.int64(1), group.lane[index]), np.int64(0))
    warps = group.warp_start[index]
    edges = np.flatnonzero(np.concatenate(([True], warps[1:] != warps[:-1])))
    sums = np.add.reduceat(bits, edges)
    return np.repeat(sums, np.diff(np.append(edges, len(warps)))).astype(np.uint32)


def present(group, index: Index) -> Array:
    """For each thread the bits of its warp's lanes that run together with it."""
    return ballot(group, index, np.ones(len(group.lane[index]), bool))


def _sources(mode: str, lane: Array, offset: Array, clamp: Array) -> tuple[Array, Array]:
    """The lane that each lane reads from, and whether it lies inside its segment (PTX ISA, shfl.sync)."""
    offset = offset.astype(np.int64) & 31
    segment, limit = (clamp.astype(np.int64) >> 8) & 31, clamp.astype(np.int64) & 31
    highest = (lane & segment) | (limit & ~segment)
    if mode == "idx":
        source = (lane & segment) | (offset & ~segment)
    else:
        source = lane ^ offset if mode == "bfly" else lane - offset if mode == "up" else lane + offset
    inside = source >= highest if mode == "up" else source <= highest
    return np.where(inside, source, lane), inside


def _gather(group, index: Index, value: Array, source: Array, given: Instruction) -> Array:
    """The value of lane `source` of each thread's warp; all lanes read from must be in `index`."""
    threads = positions(index)
    where = threads - group.lane[index] + source
    absent = source >= group.warp_width[index]
    if len(threads) < group.size:
        there = np.zeros(group.size + 32, bool)
        there[threads] = True
        absent |= ~there[where]
    if absent.any():
        lane = int(np.flatnonzero(absent)[0])
        message = f"{given.name} reads lane {int(source[lane])}, which does not take part"
        raise group.error(WarpDivergence, message, given.place, int(threads[lane]))
    everyone = np.zeros(group.size + 32, value.dtype)
    everyone[threads] = value
    return everyone[where]


@instruction("shfl")
def build_shuffle(given: Instruction, context: Context) -> WarpStep:
    flags = given.allow("sync", "up", "down", "bfly", "idx")
    mode = next((flag for flag in flags if flag != "sync"), None)
    if "sync" not in flags or mode is None:
        raise given.unknown()
    names = [name.strip() for name in given.operands[0].split("|")]
    write = context.writer(names[0], "b32", given)
    write_inside = context.writer(names[1], "pred", given) if len(names) > 1 else None
    read, offset, clamp, mask = context.readers(given, 1, ["b32", "b32", "b32", "b32"])

    def step(group, index: Index) -> None:
        lane = group.lane[index]
        source, inside = _sources(mode, lane, offset(group, index), clamp(group, index))
        value = spread(read(group, index), count(index))
        write(group, index, _gather(group, index, value, source, given))
        if write_inside:
            write_inside(group, index, inside)

    return WarpStep(step, mask)


@instruction("vote")
def build_vote(given: Instruction, context: Context) -> WarpStep:
    flags = given.allow("sync", "all", "any", "uni", "ballot")
    mode = next((flag for flag in flags if flag != "sync"), None)
    read, mask = context.readers(given, 1, ["pred", "b32"])
    write = context.writer(given.operands[0], "b32" if mode == "ballot" else "pred", given)
    if "sync" not in flags or mode is None:
        raise given.unknown()

    def step(group, index: Index) -> None:
        votes = spread(read(group, index), count(index))
        yes, there = ballot(group, index, votes), present(group, index)
        results: dict[str, Callable[[], Array]] = {
            "ballot": lambda: yes,
            "any": lambda: yes != 0,
            "all": lambda: yes == there,
            "uni": lambda: (yes == there) | (yes == 0),
        }
        write(group, index, results[mode]())

    return WarpStep(step, mask)


@instruction("match")
def build_match(given: Instruction, context: Context) -> WarpStep:
    """`any`: the lanes with the same value; `all`: the mask if all agree, else 0, and whether they do."""
    flags = given.allow("sync", "any", "all")
    names = [name.strip() for name in given.operands[0].split("|")]
    write = context.writer(names[0], "b32", given)
    write_agree = context.writer(names[1], "pred", given) if len(names) > 1 else None
    read, mask = context.readers(given, 1, [given.type, "b32"])

    def step(group, index: Index) -> None:
        value = spread(read(group, index), count(index))
        same = _matching(group, index, value)
        there = present(group, index)
        if "any" in flags:
            write(group, index, same)
            return
        agree = same == there
        write(group, index, np.where(agree, there, np.uint32(0)))
        if write_agree:
            write_agree(group, index, agree)

    return WarpStep(step, mask)


def _matching(group, index: Index, value: Array) -> Array:
    """For each thread the bits of its warp's lanes, among those in `index`, with the same value."""
    threads = positions(index)
    everyone = np.zeros(group.size + 32, value.dtype)
    there = np.zeros(group.size + 32, bool)
    everyone[threads], there[threads] = value, True
    start = group.warp_start[index]
    result = np.zeros(len(threads), np.uint32)
    for lane in range(32):
        inside = there[start + lane] & (lane < group.warp_width[index])
        result |= np.where(inside & (everyone[start + lane] == value), np.uint32(1 << lane), np.uint32(0))
    return result


@instruction("redux")
def build_reduction(given: Instruction, context: Context) -> WarpStep:
    functions = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    flags = given.allow("sync", *functions)
    function = next(functions[flag] for flag in flags if flag in functions)
    write = context.writer(given.operands[0], given.type, given)
    read, mask = context.readers(given, 1, [given.type, "b32"])

    def step(group, index: Index) -> None:
        warps = group.warp_start[index]
        edges = np.flatnonzero(np.concatenate(([True], warps[1:] != warps[:-1])))
        value = spread(read(group, index), len(warps))
        totals = function.reduceat(value, edges).astype(value.dtype)
        write(group, index, np.repeat(totals, np.diff(np.append(edges, len(warps)))))

    return WarpStep(step, mask)


@instruction("activemask")
def build_active_mask(given: Instruction, context: Context) -> Step:
    """The lanes that happen to run together here, which no program should rely on."""
    given.allow()
    write = context.writer(given.operands[0], "b32", given)
    return lambda group, index: write(group, index, present(group, index))


@instruction("elect")
def build_elect(given: Instruction, context: Context) -> WarpStep:
    """One lane of the mask is chosen: the lowest."""
    given.allow("sync")
    names = [name.strip() for name in given.operands[0].split("|")]
    write, write_chosen = context.writer(names[0], "b32", given), context.writer(names[1], "pred", given)
    (mask,) = context.readers(given, 1, ["b32"])

    def step(group, index: Index) -> None:
        there = present(group, index)
        lowest = np.bitwise_count((there & (~there + np.uint32(1))) - np.uint32(1)).astype(np.uint32)
        write(group, index, lowest)
        write_chosen(group, index, lowest == group.lane[index])

    return WarpStep(step, mask)
