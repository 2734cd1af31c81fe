"""Loads, stores and asynchronous copies."""

from __future__ import annotations

import re

import numpy as np

from gpulayers.emulator.context import PARAM_WINDOW, SHARED_WINDOW, Context, Index, Reader, Step, pieces
from gpulayers.emulator.indexing import count, positions, select, spread
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.regions import Access, Region
from gpulayers.emulator.registry import instruction

Array = np.ndarray
_ADDRESS = re.compile(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\w+))?\s*\]$")
SPACES = ("global", "shared", "local", "const", "param")
STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel"}  # such accesses do not race with each other
RELEASE = {"release", "acq_rel", "sc"}
SCOPES = ("cta", "gpu", "sys", "cluster", "weak", "mmio")
CACHE_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def space_of(given: Instruction) -> str:
    """The address space that the instruction names, or "generic"."""
    return next((flag.split("::")[0] for flag in given.flags if flag.split("::")[0] in SPACES), "generic")


def check_flags(given: Instruction, *more: str) -> None:
    """Only modifiers that do not change what is computed, and those in `more`."""
    hints = [flag for flag in given.flags if re.match(r"L[12]::", flag)]
    known = (*SPACES, "shared::cta", *STRONG, *SCOPES, *CACHE_HINTS, *VECTORS, *hints)
    given.allow(*known, *more)


def address_reader(given: Instruction, context: Context, operand: str) -> Reader:
    """Reads `[register+offset]` or `[variable+offset]` as generic 64-bit addresses, one for each thread."""
    found = _ADDRESS.match(operand)
    if not found:
        raise given.unknown(f"address {operand}")
    space = space_of(given)
    base = {"shared": SHARED_WINDOW, "param": PARAM_WINDOW}.get(space, 0)
    base += LOCAL_BASE if space == "local" else 0
    offset = np.uint64((int(found[2] or "0", 0) + base) & (2**64 - 1))
    read = context.reader(found[1], "u64", given)

    def addresses(group, index: Index) -> Array:
        value = read(group, index) + offset
        return value if np.ndim(value) else np.full(count(index), value)

    return addresses


LOCAL_BASE = 1 << 61


def views(region: Region, where: Array, code: str) -> tuple[Array, Array]:
    """The region as elements of a type, and the element that each byte position falls on."""
    dtype = DTYPES[code]
    return region.view(dtype), where >> np.int64(dtype.itemsize.bit_length() - 1)


@instruction("ld", "ldu")
def build_load(given: Instruction, context: Context) -> Step:
    check_flags(given)
    lanes = next((VECTORS[flag] for flag in given.flags if flag in VECTORS), 1)
    code, space = given.type, space_of(given)
    writers = [context.writer(name, code, given) for name in pieces(given.operands[0])]
    if len(writers) != lanes:
        raise given.unknown("vector of another length")
    if space == "param" and context.constant(given.operands[1].strip("[] "), DTYPES["u64"]) is not None:
        return _build_parameter_load(given, context, writers, code)
    read_address = address_reader(given, context, given.operands[1])
    atomic = bool(STRONG & set(given.flags))
    access = Access(DTYPES[code].itemsize * lanes, False, atomic, given.place, cached="nc" in given.flags)

    def step(group, index: Index) -> None:
        addresses = read_address(group, index)
        for region, where, address, part in group.memory.split(group, addresses, access, index):
            region.check(group, where, address, access, part)
            view, element = views(region, where, code)
            for number, write in enumerate(writers):
                write(group, part, view.take(element + np.int64(number) if number else element))

    return step


def _build_parameter_load(given: Instruction, context: Context, writers: list, code: str) -> Step:
    """Parameters at a fixed offset are the same value for all threads."""
    address = context.constant(given.operands[1].strip("[] "), DTYPES["u64"])
    assert address is not None, "a parameter lies at a fixed place"
    offset = int(address)
    dtype = DTYPES[code]

    def step(group, index: Index) -> None:
        values = group.launch.parameters[offset : offset + dtype.itemsize * len(writers)].view(dtype)
        for write, value in zip(writers, values, strict=True):
            write(group, index, value)

    return step


@instruction("st")
def build_store(given: Instruction, context: Context) -> Step:
    check_flags(given)
    lanes = next((VECTORS[flag] for flag in given.flags if flag in VECTORS), 1)
    code = given.type
    raw = f"b{8 * DTYPES[code].itemsize}"
    readers = [context.reader(name, raw, given) for name in pieces(given.operands[1])]
    if len(readers) != lanes:
        raise given.unknown("vector of another length")
    read_address = address_reader(given, context, given.operands[0])
    atomic = bool(STRONG & set(given.flags))
    access = Access(DTYPES[code].itemsize * lanes, True, atomic, given.place, bool(RELEASE & set(given.flags)))

    def step(group, index: Index) -> None:
        addresses = read_address(group, index)
        for region, where, address, part in group.memory.split(group, addresses, access, index):
            values = [spread(read(group, part), len(where)) for read in readers]
            races = region.check(group, where, address, access, part)
            view, element = views(region, where, raw)
            harmful = np.zeros(len(where), bool)
            if races is not None and races.stores is not None:  # harmless where it stores what is there already
                harmful |= races.stores[0] & _differs(view, element, values)
            for number, value in enumerate(values):
                view[element + np.int64(number) if number else element] = value
            if races is not None and races.together is not None:  # harmless where all of them store the same
                harmful |= races.together & _differs(view, element, values)
            if races is not None and harmful.any():
                region.report_store(group, harmful, address, access, part)

    return step


def _differs(view: Array, element: Array, values: list[Array]) -> Array:
    """Where memory does not hold the values."""
    parts = [view.take(element + np.int64(number)) != value for number, value in enumerate(values)]
    return np.logical_or.reduce(parts)


@instruction("membar", "fence")
def build_fence(given: Instruction, context: Context) -> Step:
    """A fence beyond the block, after which the thread's atomics release what was stored before."""
    given.allow("gl", "sys", "cta", "gpu", "cluster", "sc", "acq_rel", "proxy", "async", "acquire", "release")
    if "cta" in given.flags or "cluster" in given.flags:
        return lambda group, index: None

    def step(group, index: Index) -> None:
        group.fenced[index] = True

    return step


@instruction("prefetch", "prefetchu", "discard", "applypriority")
def build_hint(given: Instruction, context: Context) -> Step:
    """Hints to the caches change no value."""
    return lambda group, index: None


@instruction("cp")
def build_copy(given: Instruction, context: Context) -> Step:
    """`cp.async`: copied at once, so a missing wait is not seen. Bulk copies are not known."""
    if given.flags[:1] != ("async",) or "bulk" in given.flags:
        raise given.unknown()
    if {"commit_group", "wait_group", "wait_all"} & set(given.flags):
        return lambda group, index: None
    hints = [flag for flag in given.flags if re.match(r"L[12]::", flag)]
    given.allow("async", "ca", "cg", "shared", "shared::cta", "global", *hints)
    size = int(given.operands[2])
    target, source = (Access(size, write, False, given.place) for write in (True, False))
    read_target = _operand_address(given, context, 0, SHARED_WINDOW)
    read_source = _operand_address(given, context, 1, 0)
    read_valid = context.reader(given.operands[3], "u32", given) if len(given.operands) > 3 else None

    def step(group, index: Index) -> None:
        data = np.zeros((count(index), size), np.uint8)
        mask = np.ones(count(index), bool) if read_valid is None else spread(read_valid(group, index) > 0, len(data))
        taken = select(index, mask)
        if taken is not None:
            data[mask] = _gather(group, read_source(group, taken), source, taken)
        for region, where, address, part in group.memory.split(group, read_target(group, index), target, index):
            region.check(group, where, address, target, part)
            lanes = np.searchsorted(positions(index), positions(part))
            region.data[where[:, None] + np.arange(size)] = data[lanes]

    return step


def _operand_address(given: Instruction, context: Context, number: int, window: int) -> Reader:
    found = _ADDRESS.match(given.operands[number])
    if not found:
        raise given.unknown(f"address {given.operands[number]}")
    read = context.reader(found[1], "u64", given)
    offset = np.uint64((int(found[2] or "0", 0) + window) & (2**64 - 1))

    def addresses(group, index: Index) -> Array:
        value = read(group, index) + offset
        return value if np.ndim(value) else np.full(count(index), value)

    return addresses


def _gather(group, addresses: Array, access: Access, index: Index) -> Array:
    """The bytes at the addresses, one row a thread."""
    rows = np.empty((count(index), access.size), np.uint8)
    for region, where, address, part in group.memory.split(group, addresses, access, index):
        region.check(group, where, address, access, part)
        rows[np.searchsorted(positions(index), positions(part))] = region.data[where[:, None] + np.arange(access.size)]
    return rows
