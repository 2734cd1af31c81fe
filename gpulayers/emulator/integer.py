"""Integer and bitwise instructions. NumPy's fixed-width integers wrap as the hardware's do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.context import Context, Step
from gpulayers.emulator.elementwise import elementwise
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray
WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def high_product(a: Array, b: Array) -> Array:
    """The upper half of the full product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(a.dtype)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    result = _high_product_u64(x, y)
    if a.dtype.kind == "i":  # signed = unsigned minus the other factor for each negative one
        result = result - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return result.astype(a.dtype)


def _high_product_u64(x: Array, y: Array) -> Array:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    carry = x_low * y_high + (middle & mask)
    return x_high * y_high + (middle >> half) + (carry >> half)


def saturating(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """s32 arithmetic done in 64 bits and clamped (`.sat`)."""
    low, high = np.int64(-(2**31)), np.int64(2**31 - 1)
    return lambda a, b: np.clip(function(a.astype(np.int64), b.astype(np.int64)), low, high).astype(np.int32)


def divide(a: Array, b: Array) -> Array:
    """Quotient truncated towards zero; all ones for division by zero, as the hardware gives."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient).astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend; the dividend itself for division by zero."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, np.fmod(a, safe))


def _is_float(given: Instruction) -> bool:
    return given.type.startswith(("f", "bf"))


ADDITIVE = {"add": np.add, "sub": np.subtract}


def build_add(given: Instruction, context: Context) -> Step:
    """Integer `add` and `sub` (floating.py takes the others)."""
    function = ADDITIVE[given.opcode]
    if "sat" in given.allow("sat"):
        function = saturating(function)
    return elementwise(given, context, function, [given.type] * 2, given.type)


def build_multiply(given: Instruction, context: Context) -> Step:
    """Integer `mul`, `.lo`, `.hi` or `.wide`."""
    flags, code = given.allow("lo", "hi", "wide"), given.type
    if "wide" in flags:
        wide = DTYPES[WIDER[code]]
        return elementwise(given, context, lambda a, b: a.astype(wide) * b.astype(wide), [code] * 2, WIDER[code])
    return elementwise(given, context, high_product if "hi" in flags else np.multiply, [code] * 2, code)


def build_multiply_add(given: Instruction, context: Context) -> Step:
    """Integer `mad`, `.lo`, `.hi` or `.wide`."""
    flags, code = given.allow("lo", "hi", "wide"), given.type
    if "wide" in flags:
        wide = DTYPES[WIDER[code]]
        codes = [code, code, WIDER[code]]
        return elementwise(given, context, lambda a, b, c: a.astype(wide) * b.astype(wide) + c, codes, WIDER[code])
    product = high_product if "hi" in flags else np.multiply
    return elementwise(given, context, lambda a, b, c: product(a, b) + c, [code] * 3, code)


def build_divide(given: Instruction, context: Context) -> Step:
    """Integer `div`."""
    given.allow()
    return elementwise(given, context, divide, [given.type] * 2, given.type)


@instruction("rem")
def build_remainder(given: Instruction, context: Context) -> Step:
    given.allow()
    return elementwise(given, context, remainder, [given.type] * 2, given.type)


@instruction("mul24", "mad24")
def build_short_product(given: Instruction, context: Context) -> Step:
    """The low 24 bits of both factors; `.lo` takes the low 32 bits of the product, `.hi` bits 16 to 47."""
    flags, code = given.allow("lo", "hi"), given.type
    wide, shift = (np.int64, 40) if code == "s32" else (np.uint64, 40)

    def product(a: Array, b: Array) -> Array:
        x, y = ((v.astype(wide) << wide(shift)) >> wide(shift) for v in (a, b))
        full = x * y
        return (full >> wide(16) if "hi" in flags else full).astype(a.dtype)

    if given.opcode == "mul24":
        return elementwise(given, context, product, [code] * 2, code)
    return elementwise(given, context, lambda a, b, c: product(a, b) + c, [code] * 3, code)


@instruction("sad")
def build_absolute_difference(given: Instruction, context: Context) -> Step:
    given.allow()
    return elementwise(given, context, lambda a, b, c: c + np.where(a < b, b - a, a - b), [given.type] * 3, given.type)


@instruction("dp4a")
def build_byte_product(given: Instruction, context: Context) -> Step:
    """c + the dot product of four bytes of a and of b."""
    given.allow()
    kinds = [np.dtype("i1" if code == "s32" else "u1") for code in given.types]

    def dot(a: Array, b: Array, c: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        x, y = (
            np.ascontiguousarray(v).view(kind).reshape(-1, 4).astype(np.int64)
            for v, kind in zip((a, b), kinds, strict=True)
        )
        return (np.sum(x * y, axis=1) + c).astype(c.dtype)

    result = "s32" if "s32" in given.types else "u32"
    return elementwise(given, context, dot, ["b32", "b32", result], result)
