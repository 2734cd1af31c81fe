"""Floating-point instructions of all formats, and `min`, `max`, `neg`, `abs`, which integers have too.

Each is computed wider and rounded once. The approximate ones (`ex2.approx` and so on) are computed in float64 and
rounded, hence more exact than the hardware's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator import integer
from gpulayers.emulator.carry import build_carry
from gpulayers.emulator.context import Context, Step
from gpulayers.emulator.elementwise import elementwise
from gpulayers.emulator.formats import (
    FORMATS,
    TINY16,
    TINY32,
    direct,
    flush,
    fused_double,
    fused_wide,
    narrow_float32,
    two_product,
    two_sum,
)
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray
Function = Callable[..., Array]
ROUNDING = ("rn", "rz", "rm", "rp")


def is_float(code: str) -> bool:
    """Whether a PTX type is a floating-point one."""
    return code in FORMATS


def _saturate(x: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, x.dtype.type(0), x.dtype.type(1)))


def wrap(given: Instruction, compute: Function, double: bool = False) -> Function:
    """Unpack the operands, flush subnormals if asked, compute, saturate or clamp if asked, and pack the result.

    `double`: the computation returns float64, still to be rounded to the type."""
    form, code = FORMATS[given.type], given.type
    ftz = "ftz" in given.flags and code != "f64"
    tiny = TINY16 if code.startswith("f16") else TINY32
    ends = [step for flag, step in (("sat", _saturate), ("relu", _relu)) if flag in given.flags]
    pack = form.pack_double if double else form.pack

    def function(*operands: Array) -> Array:
        if form.is_pair:
            operands = tuple(np.broadcast_arrays(*operands))
        values = [form.unpack(operand) for operand in operands]
        if ftz:
            values = [flush(value, tiny) for value in values]
        result = compute(*values)
        for end in ends:
            result = end(result)
        return pack(flush(result, tiny) if ftz else result)

    plain = code in ("f32", "f64") and not ftz and not ends and not double
    return compute if plain else function


def _relu(x: Array) -> Array:
    return np.where(np.isnan(x), x, np.maximum(x, x.dtype.type(0)))


def float_step(given: Instruction, context: Context, count: int, compute: Function, double: bool = False) -> Step:
    """A step for a float instruction with `count` operands of its type."""
    return elementwise(given, context, wrap(given, compute, double), [given.type] * count, given.type)


def _mode(given: Instruction) -> str:
    return next((flag for flag in given.flags if flag in ROUNDING), "rn")


def _directed(function: Function, exact: Callable[..., tuple[Array, Array]], mode: str) -> Function:
    """Arithmetic with a directed rounding: round to nearest, then look at the exact error."""

    def compute(*values: Array) -> Array:
        if values[0].dtype == np.float32:
            return narrow_float32(exact(*[value.astype(np.float64) for value in values])[0], mode)
        nearest, error = exact(*values)
        return direct(nearest, error, mode)

    return function if mode == "rn" else compute


def _exact_difference(a: Array, b: Array) -> tuple[Array, Array]:
    return two_sum(a, -b)


@instruction("add", "sub")
def build_add(given: Instruction, context: Context) -> Step:
    if "cc" in given.flags:
        return build_carry(given, context)
    if not is_float(given.type):
        return integer.build_add(given, context)
    given.allow("ftz", "sat", *ROUNDING)
    exact = two_sum if given.opcode == "add" else _exact_difference
    compute = _directed(integer.ADDITIVE[given.opcode], exact, _mode(given))
    return float_step(given, context, 2, compute)


@instruction("mul")
def build_multiply(given: Instruction, context: Context) -> Step:
    if not is_float(given.type):
        return integer.build_multiply(given, context)
    given.allow("ftz", "sat", *ROUNDING)
    return float_step(given, context, 2, _directed(np.multiply, two_product, _mode(given)))


@instruction("fma", "mad")
def build_fused(given: Instruction, context: Context) -> Step:
    if "cc" in given.flags:
        return build_carry(given, context)
    if not is_float(given.type):
        return integer.build_multiply_add(given, context)
    given.allow("ftz", "sat", "relu", *ROUNDING)
    mode, code = _mode(given), given.type
    if mode != "rn":
        if code != "f32":
            raise given.unknown(f"rounding mode .{mode}")
        return float_step(given, context, 3, lambda a, b, c: narrow_float32(fused_wide(a, b, c), mode))
    if code == "f64":
        return float_step(given, context, 3, fused_double)
    return float_step(given, context, 3, fused_wide, double=True)


@instruction("div")
def build_divide(given: Instruction, context: Context) -> Step:
    if not is_float(given.type):
        return integer.build_divide(given, context)
    given.allow("ftz", "approx", "full", *ROUNDING)
    mode = _mode(given)
    if mode == "rn":
        return float_step(given, context, 2, np.divide)
    if given.type != "f32":
        raise given.unknown(f"rounding mode .{mode}")
    return float_step(given, context, 2, lambda a, b: narrow_float32(a.astype(np.float64) / b, mode))


UNARY: dict[str, Callable[[Array], Array]] = {
    "sqrt": np.sqrt,
    "rcp": lambda x: 1.0 / x,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@instruction(*UNARY)
def build_unary(given: Instruction, context: Context) -> Step:
    given.allow("ftz", "approx", *ROUNDING)
    function, mode = UNARY[given.opcode], _mode(given)
    if mode == "rn":
        return float_step(given, context, 1, lambda x: function(x.astype(np.float64)), double=True)
    if given.type != "f32":
        raise given.unknown(f"rounding mode .{mode}")
    return float_step(given, context, 1, lambda x: narrow_float32(function(x.astype(np.float64)), mode))


def _ordered(function: Function, zero_sign: bool) -> Function:
    """fmin or fmax with -0 < +0, which NumPy leaves open."""

    def compute(a: Array, b: Array) -> Array:
        result = function(a, b)
        zeros = (a == 0) & (b == 0)
        if not np.any(zeros):
            return result
        negative = np.signbit(a) | np.signbit(b) if zero_sign else np.signbit(a) & np.signbit(b)
        return np.where(zeros, np.where(negative, result.dtype.type(-0.0), result.dtype.type(0.0)), result)

    return compute


@instruction("min", "max")
def build_extremum(given: Instruction, context: Context) -> Step:
    """Without `.NaN` a NaN loses against a number."""
    smaller = given.opcode == "min"
    count = len(given.operands) - 1
    if not is_float(given.type):
        given.allow()
        return elementwise(given, context, np.minimum if smaller else np.maximum, [given.type] * 2, given.type)
    given.allow("ftz", "NaN")
    pick = (np.minimum if smaller else np.maximum) if "NaN" in given.flags else (np.fmin if smaller else np.fmax)
    two = _ordered(pick, smaller)
    compute = two if count == 2 else lambda a, b, c: two(two(a, b), c)
    return float_step(given, context, count, compute)


# Signs are changed as bits: NaN payloads and subnormals pass through as on the device.
SIGN_BITS = {"f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000, "f32": 1 << 31, "f64": 1 << 63}


@instruction("neg", "abs")
def build_sign(given: Instruction, context: Context) -> Step:
    code, negate = given.type, given.opcode == "neg"
    if not is_float(code):
        given.allow()
        return elementwise(given, context, np.negative if negate else np.abs, [code], code)
    flags = given.allow("ftz")
    raw = np.dtype(f"u{DTYPES[code].itemsize}")
    bit = raw.type(SIGN_BITS[code])

    def change(x: Array) -> Array:
        if "ftz" in flags and code == "f32":
            x = flush(x)
        bits = x.view(raw)
        return (bits ^ bit if negate else bits & ~bit).view(DTYPES[code])

    return elementwise(given, context, change, [code], code)


@instruction("copysign")
def build_copysign(given: Instruction, context: Context) -> Step:
    given.allow()
    return elementwise(given, context, lambda a, b: np.copysign(b, a), [given.type] * 2, given.type)


@instruction("testp")
def build_test(given: Instruction, context: Context) -> Step:
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
    }
    (flag,) = given.allow(*tests)
    return elementwise(given, context, tests[flag], [given.type], "pred")
