"""Moves, conversions, comparisons and selections."""

from __future__ import annotations

import numpy as np

from gpulayers.emulator.context import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Context, Index, Step, pieces
from gpulayers.emulator.elementwise import elementwise
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray


@instruction("mov")
def build_move(given: Instruction, context: Context) -> Step:
    given.allow()
    target, source = given.operands
    if target.startswith("{"):
        return _split(given, context)
    if source.startswith("{"):
        return _join(given, context)
    return elementwise(given, context, lambda a: a, [given.type], given.type)


def _split(given: Instruction, context: Context) -> Step:
    """`mov.b32 {low, high}, x`: the parts of a wider register, the lowest first."""
    names = pieces(given.operands[0])
    size = DTYPES[given.type].itemsize // len(names)
    read = context.reader(given.operands[1], f"u{8 * DTYPES[given.type].itemsize}", given)
    writers = [context.writer(name, f"b{8 * size}", given) for name in names]
    part, whole = np.dtype(f"u{size}"), DTYPES[f"u{8 * DTYPES[given.type].itemsize}"]

    def step(group, index: Index) -> None:
        value = read(group, index)
        for number, write in enumerate(writers):
            write(group, index, (value >> whole.type(8 * size * number)).astype(part))

    return step


def _join(given: Instruction, context: Context) -> Step:
    """`mov.b32 x, {low, high}`."""
    names = pieces(given.operands[1])
    size = DTYPES[given.type].itemsize // len(names)
    readers = [context.reader(name, f"b{8 * size}", given) for name in names]
    write = context.writer(given.operands[0], given.type, given)
    whole = np.dtype(f"u{DTYPES[given.type].itemsize}")

    def step(group, index: Index) -> None:
        result = whole.type(0)
        for number, read in enumerate(readers):
            result = result | (read(group, index).astype(whole) << whole.type(8 * size * number))
        write(group, index, result.view(DTYPES[given.type]))

    return step


WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0}


def _window(given: Instruction) -> np.uint64:
    space = next((flag for flag in (f.split("::")[0] for f in given.flags) if flag in WINDOWS), None)
    if space is None:
        raise given.unknown("address space")
    return np.uint64(WINDOWS[space])


@instruction("cvta")
def build_address_conversion(given: Instruction, context: Context) -> Step:
    """To and from generic addresses: each small space has a window of its own."""
    given.allow("to", "shared::cta", *WINDOWS)
    window = _window(given)
    if "to" in given.flags:
        return elementwise(given, context, lambda a: a - window, ["u64"], "u64")
    return elementwise(given, context, lambda a: a + window, ["u64"], "u64")


@instruction("isspacep")
def build_space_test(given: Instruction, context: Context) -> Step:
    given.allow("shared::cta", *WINDOWS)
    window = int(_window(given))
    bounds = (np.uint64(window), np.uint64(window * 2 if window else SHARED_WINDOW))
    write = context.writer(given.operands[0], "pred", given)
    read = context.reader(given.operands[1], "u64", given)

    def step(group, index: Index) -> None:
        address = read(group, index)
        write(group, index, (address >= bounds[0]) & (address < bounds[1]))

    return step


@instruction("fns")
def build_find_nth(given: Instruction, context: Context) -> Step:
    raise given.unknown()
