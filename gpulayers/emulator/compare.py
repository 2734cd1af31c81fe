"""Comparisons (`setp`, `set`) and selections (`selp`, `slct`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.context import Context, Index, Step
from gpulayers.emulator.elementwise import elementwise
from gpulayers.emulator.floating import is_float
from gpulayers.emulator.formats import (
    FORMATS,
    flush,
)
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray


_SIMPLE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}


COMPARISONS = (*_SIMPLE, *_UNSIGNED, *_UNORDERED, "num", "nan")


_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _has_nan(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def comparison(name: str, floating: bool) -> Callable[[Array, Array], Array]:
    """The function behind a comparison's name. The `u` forms are true for NaN, the others false."""
    if name == "nan":
        return _has_nan
    if name == "num":
        return lambda a, b: ~_has_nan(a, b)
    if name in _UNORDERED:
        simple = _SIMPLE[_UNORDERED[name]]
        return lambda a, b: simple(a, b) | _has_nan(a, b)
    if name == "ne" and floating:
        return lambda a, b: (a != b) & ~_has_nan(a, b)
    return _SIMPLE[_UNSIGNED.get(name, name)]


def _compare(given: Instruction, code: str) -> Callable[[Array, Array], Array]:
    name = next((flag for flag in given.flags if flag in COMPARISONS), None)
    if name is None:
        raise given.unknown("comparison")
    compare = comparison(name, is_float(code))
    if not is_float(code):
        return compare
    unpack = FORMATS[code].unpack
    if "ftz" in given.flags and code == "f32":
        return lambda a, b: compare(flush(a), flush(b))
    return lambda a, b: compare(unpack(a), unpack(b))


@instruction("setp")
def build_set_predicate(given: Instruction, context: Context) -> Step:
    """`setp.cmp{.bool}.type p|q, a, b{, c}`: p = (a cmp b) bool c, q = !(a cmp b) bool c."""
    given.allow("ftz", *COMPARISONS, *_COMBINE)
    code = given.type
    if code in ("f16x2", "bf16x2"):
        return _build_pair_predicate(given, context)
    compare = _compare(given, code)
    combine = next((_COMBINE[flag] for flag in given.flags if flag in _COMBINE), None)
    names = [name.strip() for name in given.operands[0].split("|")]
    writers = [context.writer(name, "pred", given) for name in names]
    readers = context.readers(given, 1, [code, code, *(["pred"] if combine else [])])

    def step(group, index: Index) -> None:
        values = [read(group, index) for read in readers]
        result = compare(values[0], values[1])
        for number, write in enumerate(writers):
            chosen = ~result if number else result
            write(group, index, combine(chosen, values[2]) if combine else chosen)

    return step


def _build_pair_predicate(given: Instruction, context: Context) -> Step:
    """The packed form sets p from the lower and q from the upper half."""
    compare = _compare(given, given.type)
    writers = [context.writer(name.strip(), "pred", given) for name in given.operands[0].split("|")]
    readers = context.readers(given, 1, [given.type, given.type])

    def step(group, index: Index) -> None:
        result = compare(*np.broadcast_arrays(*[read(group, index) for read in readers]))
        for number, write in enumerate(writers):
            write(group, index, result[number::2])

    return step


@instruction("set")
def build_set(given: Instruction, context: Context) -> Step:
    """Comparison with a value as result: all ones or zero for integers, 1.0 or 0.0 for floats."""
    given.allow("ftz", *COMPARISONS)
    target, code = given.types
    compare = _compare(given, code)
    pair = code in ("f16x2", "bf16x2")
    one = {"f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80, "f32": 0x3F800000}.get(target, -1)
    raw = np.dtype("u2") if pair else np.dtype(f"u{DTYPES[target].itemsize}")
    values = (raw.type(0), np.array(one).astype(raw))

    def choose(a: Array, b: Array) -> Array:
        result = np.where(compare(*np.broadcast_arrays(a, b)), values[1], values[0])
        return (result.view(np.uint32) if pair else result).view(DTYPES[target])

    return elementwise(given, context, choose, [code, code], target)


@instruction("selp")
def build_select(given: Instruction, context: Context) -> Step:
    given.allow()
    code = f"b{8 * DTYPES[given.type].itemsize}"  # bits, whatever they mean: np.where must not convert
    return elementwise(given, context, lambda a, b, p: np.where(p, a, b), [code, code, "pred"], code)


@instruction("slct")
def build_select_by_sign(given: Instruction, context: Context) -> Step:
    flags = given.allow("ftz")
    code, sign = f"b{8 * DTYPES[given.types[0]].itemsize}", given.types[1]

    def choose(a: Array, b: Array, c: Array) -> Array:
        return np.where((flush(c) if "ftz" in flags else c) >= 0, a, b)

    return elementwise(given, context, choose, [code, code, sign], code)
