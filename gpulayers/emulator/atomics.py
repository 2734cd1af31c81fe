"""Atomic read-modify-write. Threads that meet at one address take their turns in the order of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.access import CACHE_HINTS, RELEASE, SCOPES, STRONG, address_reader, check_flags, views
from gpulayers.emulator.context import Context, Index, Step
from gpulayers.emulator.formats import FORMATS
from gpulayers.emulator.indexing import spread
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.regions import Access
from gpulayers.emulator.registry import instruction

Array = np.ndarray
Combine = Callable[..., Array]


def _add(code: str) -> Combine:
    if code in ("f32", "f64") or code not in FORMATS:
        return np.add
    form = FORMATS[code]
    return lambda old, value: form.pack(form.unpack(old) + form.unpack(value)).view(old.dtype)


def _combine(given: Instruction, operation: str) -> Combine:
    table: dict[str, Combine] = {
        "add": _add(given.type),
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, value: value,
        "cas": lambda old, compare, value: np.where(old == compare, value, old),
        "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
    }
    return table[operation]


OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@instruction("atom", "red")
def build_atomic(given: Instruction, context: Context) -> Step:
    check_flags(given, *OPERATIONS, "noftz", *STRONG, *SCOPES, *CACHE_HINTS)
    operation = next((flag for flag in given.flags if flag in OPERATIONS), None)
    if operation is None or {"v2", "v4", "v8"} & set(given.flags):
        raise given.unknown()
    if operation in ("min", "max") and given.type in FORMATS:
        raise given.unknown("extremum of floats")
    code, returns = given.type, given.opcode == "atom"
    combine = _combine(given, operation)
    target = given.operands[0] if returns else "_"
    wanted = returns and target != "_" and context.uses.get(target, 0) > 0
    write = context.writer(target, code, given)
    read_address = address_reader(given, context, given.operands[1 if returns else 0])
    readers = [context.reader(text, code, given) for text in given.operands[2 if returns else 1 :]]
    if len(readers) != (2 if operation == "cas" else 1):
        raise given.unknown(f"{len(given.operands)} operands")
    access = Access(DTYPES[code].itemsize, True, True, given.place, bool(RELEASE & set(given.flags)))

    def step(group, index: Index) -> None:
        addresses = read_address(group, index)
        for region, where, address, part in group.memory.split(group, addresses, access, index):
            region.check(group, where, address, access, part)
            view, element = views(region, where, code)
            values = [spread(read(group, part), len(where)) for read in readers]
            if not wanted and isinstance(combine, np.ufunc):
                combine.at(view, element, values[0])
            else:
                write(group, part, take_turns(view, element, values, combine))

    return step


def take_turns(view: Array, element: Array, values: list[Array], combine: Combine) -> Array:
    """Apply `combine` at each element, one thread after the other where they meet; returns what each found."""
    order = np.argsort(element, kind="stable")
    ranked = element[order]
    first = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    starts = np.flatnonzero(first)
    rank = np.arange(len(order)) - starts[np.cumsum(first) - 1]
    found = np.empty(len(order), view.dtype)
    for turn in range(int(rank.max()) + 1):
        lanes = order[rank == turn]
        where = element[lanes]
        found[lanes] = view[where]
        view[where] = combine(found[lanes], *[value[lanes] for value in values])
    return found
