"""Moves, conversions, comparisons and selections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.context import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Context, Index, Step, pieces
from gpulayers.emulator.floating import is_float
from gpulayers.emulator.formats import (
    FORMATS,
    direct,
    float32_to_bfloat16,
    float64_to_bfloat16,
    flush,
    narrow_float32,
)
from gpulayers.emulator.integer import elementwise
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


INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
CONVERSION_FLAGS = ("rn", "rz", "rm", "rp", "rna", "ftz", "sat", "relu", "satfinite", *INTEGRAL)


@instruction("cvt")
def build_conversion(given: Instruction, context: Context) -> Step:
    flags = given.allow(*CONVERSION_FLAGS)
    if len(given.types) != 2:
        raise given.unknown()
    target, source = given.types
    if target in ("f16x2", "bf16x2"):
        return _build_pair(given, context)
    if target == "tf32":
        return elementwise(given, context, _to_tf32(given), ["f32"], "tf32")
    if not is_float(source) and not is_float(target):
        saturate = "sat" in flags
        return elementwise(given, context, lambda a: _integer(a, DTYPES[target], saturate), [source], target)
    function = _conversion(given, target, source)
    return elementwise(given, context, function, [source], target)


def _integer(a: Array, dtype: np.dtype, saturate: bool) -> Array:
    if saturate:
        limits = np.iinfo(dtype)
        own = np.iinfo(a.dtype)
        a = np.clip(a, a.dtype.type(max(limits.min, own.min)), a.dtype.type(min(limits.max, own.max)))
    return a.astype(dtype)


def _conversion(given: Instruction, target: str, source: str) -> Callable[[Array], Array]:
    if is_float(source) and not is_float(target):
        return _float_to_integer(given, target, source)
    mode = next((flag for flag in given.flags if flag in ("rn", "rz", "rm", "rp")), "rn")
    ftz, saturate = "ftz" in given.flags, "sat" in given.flags
    integral = next((INTEGRAL[flag] for flag in given.flags if flag in INTEGRAL), None)
    unpack = FORMATS[source].unpack if is_float(source) else _exact_double

    def convert(a: Array) -> Array:
        value = unpack(a)
        if ftz and source == "f32":
            value = flush(value)
        if integral is not None:
            value = integral(value)
        if saturate:
            value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1))
        if "relu" in given.flags:
            value = np.where(value < 0, value.dtype.type(0), value)
        if target == "f32" and mode == "rn" and not is_float(source):
            return a.astype(np.float32)  # straight from the integer: float64 does not hold all 64-bit ones
        result = _narrow(value, target, mode)
        return flush(result) if ftz and target == "f32" else result

    return convert


def _exact_double(a: Array) -> Array:
    return a.astype(np.float64)


def _narrow(value: Array, target: str, mode: str) -> Array:
    """Round a wide value to the target format."""
    if target == "f64":
        return value.astype(np.float64)
    if target == "f32":
        return value.astype(np.float32) if mode == "rn" else narrow_float32(value.astype(np.float64), mode)
    if target == "bf16":
        if mode == "rz":
            return float32_to_bfloat16(value.astype(np.float32), "rz")
        return float64_to_bfloat16(value) if value.dtype == np.float64 else float32_to_bfloat16(value)
    nearest = value.astype(np.float16)
    return nearest if mode == "rn" else direct(nearest, value.astype(np.float64) - nearest.astype(np.float64), mode)


def _float_to_integer(given: Instruction, target: str, source: str) -> Callable[[Array], Array]:
    """Round, then clamp to the target's range; NaN becomes 0, or the top bit for 64-bit targets."""
    dtype, form = DTYPES[target], FORMATS[source]
    limits = np.iinfo(dtype)
    integral = next((INTEGRAL[flag] for flag in given.flags if flag in INTEGRAL), None)
    if integral is None:
        raise given.unknown("no rounding to an integer")
    nan = dtype.type(limits.min if dtype.kind == "i" else 1 << 63) if dtype.itemsize == 8 else dtype.type(0)

    def convert(a: Array) -> Array:
        value = form.unpack(a)
        if "ftz" in given.flags and source == "f32":
            value = flush(value)
        rounded = integral(value.astype(np.float64))
        low, high = rounded <= float(limits.min), rounded >= float(limits.max)
        inside = np.where(low | high | np.isnan(rounded), 0.0, rounded).astype(dtype)
        clamped = np.where(low, dtype.type(limits.min), np.where(high, dtype.type(limits.max), inside))
        return np.where(np.isnan(rounded), nan, clamped)

    return convert


def _build_pair(given: Instruction, context: Context) -> Step:
    """`cvt.rn.f16x2.f32 d, a, b`: a becomes the upper half, b the lower."""
    target, source = given.types
    if source != "f32":
        raise given.unknown()
    half = {"f16x2": "f16", "bf16x2": "bf16"}[target]
    convert = _conversion(given, half, source)

    def pair(a: Array, b: Array) -> Array:
        high, low = (convert(v).view(np.uint16).astype(np.uint32) for v in (a, b))
        return (high << np.uint32(16)) | low

    return elementwise(given, context, pair, ["f32", "f32"], target)


def _to_tf32(given: Instruction) -> Callable[[Array], Array]:
    """float32 with 10 bits of mantissa: `.rna` ties away from zero, `.rn` ties to even, `.rz` truncates."""

    def convert(a: Array) -> Array:
        bits = np.ascontiguousarray(a).view(np.uint32)
        if "rn" in given.flags:
            moved = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        else:
            moved = bits if "rz" in given.flags else bits + np.uint32(0x1000)
        return np.where(np.isnan(a), np.uint32(0x7FFFFFFF), moved & np.uint32(0xFFFFE000))

    return convert


@instruction("fns")
def build_find_nth(given: Instruction, context: Context) -> Step:
    raise given.unknown()


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
