"""Integer and bitwise instructions. NumPy's fixed-width integers wrap as the hardware's do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.context import CARRY, Context, Index, Step
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray
WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def elementwise(
    given: Instruction, context: Context, function: Callable[..., Array], codes: list[str], result: str
) -> Step:
    """A step that applies `function` to the operands, read as `codes`, and writes the result as type `result`."""
    write = context.writer(given.operands[0], result, given)
    readers = context.readers(given, 1, codes)
    dtype = DTYPES[result]
    if len(readers) == 1:
        (first,) = readers
        return lambda group, index: write(group, index, _typed(function(first(group, index)), dtype))
    if len(readers) == 2:
        first, second = readers
        return lambda group, index: write(
            group, index, _typed(function(first(group, index), second(group, index)), dtype)
        )

    def step(group, index: Index) -> None:
        write(group, index, _typed(function(*[read(group, index) for read in readers]), dtype))

    return step


def _typed(value: Array, dtype: np.dtype) -> Array:
    return value if value.dtype == dtype else value.astype(dtype)


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
    if "cc" in given.flags:
        return build_carry(given, context)
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
    if "cc" in given.flags:
        return build_carry(given, context)
    flags, code = given.allow("lo", "hi", "wide"), given.type
    if "wide" in flags:
        wide = DTYPES[WIDER[code]]
        codes = [code, code, WIDER[code]]
        return elementwise(given, context, lambda a, b, c: a.astype(wide) * b.astype(wide) + c, codes, WIDER[code])
    product = high_product if "hi" in flags else np.multiply
    return elementwise(given, context, lambda a, b, c: product(a, b) + c, [code] * 3, code)


@instruction("addc", "subc", "madc")
def build_carry(given: Instruction, context: Context) -> Step:
    """Arithmetic of several words: `.cc` sets the carry or borrow, `addc`, `subc` and `madc` take it in."""
    flags, code = given.allow("cc", "lo", "hi"), given.type
    takes, operation = given.opcode.endswith("c"), given.opcode[:3]
    half = high_product if "hi" in flags else np.multiply
    unsigned = np.dtype(f"u{DTYPES[code].itemsize}")
    readers = context.readers(given, 1, [code] * (3 if operation == "mad" else 2))
    write, write_carry = context.writer(given.operands[0], code, given), context.writer(CARRY, "pred", given)
    read_carry = context.reader(CARRY, "pred", given)

    def step(group, index: Index) -> None:
        *factors, last = (read(group, index) for read in readers)
        first = (half(*factors) if operation == "mad" else factors[0]).view(unsigned)
        carry = read_carry(group, index).astype(unsigned) if takes else unsigned.type(0)
        result, over = _with_carry(first, last.view(unsigned), carry, operation == "sub")
        write(group, index, result.view(DTYPES[code]))
        if "cc" in flags:
            write_carry(group, index, over)

    return step


def _with_carry(a: Array, b: Array, carry: Array, subtract: bool) -> tuple[Array, Array]:
    """a + b + carry or a - b - carry, and whether it left the range."""
    if subtract:
        part = a - b
        return part - carry, (a < b) | (part < carry)
    part = a + b
    total = part + carry
    return total, (part < a) | (total < part)


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


BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


@instruction("and", "or", "xor", "not")
def build_bitwise(given: Instruction, context: Context) -> Step:
    given.allow()
    count = 1 if given.opcode == "not" else 2
    return elementwise(given, context, BITWISE[given.opcode], [given.type] * count, given.type)


@instruction("cnot")
def build_logical_not(given: Instruction, context: Context) -> Step:
    given.allow()
    return elementwise(given, context, lambda a: (a == 0).astype(a.dtype), [given.type], given.type)


def shift_left(a: Array, count: Array) -> Array:
    """Shifts of the width or more give zero."""
    width = 8 * a.dtype.itemsize
    inside = np.minimum(count, np.uint32(width - 1)).astype(a.dtype)
    return np.where(count >= width, a.dtype.type(0), a << inside)


def shift_right(a: Array, count: Array) -> Array:
    """Shifts of the width or more give zero, or the sign for signed types."""
    width = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(count, np.uint32(width - 1)).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(count >= width, a.dtype.type(0), shifted)


@instruction("shl", "shr")
def build_shift(given: Instruction, context: Context) -> Step:
    given.allow()
    function = shift_left if given.opcode == "shl" else shift_right
    return elementwise(given, context, function, [given.type, "u32"], given.type)


@instruction("shf")
def build_funnel_shift(given: Instruction, context: Context) -> Step:
    """`shf.l` gives the upper, `shf.r` the lower word of the shifted 64 bits {b, a}."""
    flags = given.allow("l", "r", "wrap", "clamp")

    def funnel(a: Array, b: Array, count: Array) -> Array:
        pair = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
        shift = (count & np.uint32(31) if "wrap" in flags else np.minimum(count, np.uint32(32))).astype(np.uint64)
        moved = (pair << shift) >> np.uint64(32) if "l" in flags else pair >> shift
        return moved.astype(np.uint32)

    return elementwise(given, context, funnel, ["b32", "b32", "u32"], "b32")


def popcount(a: Array) -> Array:
    """Number of ones."""
    return np.bitwise_count(a).astype(np.uint32)


def leading_zeros(a: Array) -> Array:
    """Number of zeros above the highest one."""
    width = 8 * a.dtype.itemsize
    for step in (1, 2, 4, 8, 16, 32)[: width.bit_length() - 1]:  # smear the highest one downwards, then count
        a = a | (a >> a.dtype.type(step))
    return np.uint32(width) - popcount(a)


def reverse_bits(a: Array) -> Array:
    """Bit 0 becomes the highest bit."""
    contiguous = np.ascontiguousarray(a)
    bits = np.unpackbits(contiguous.view(np.uint8).reshape(-1, a.dtype.itemsize), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").reshape(-1).view(a.dtype)


@instruction("popc", "clz", "brev")
def build_count(given: Instruction, context: Context) -> Step:
    given.allow()
    function = {"popc": popcount, "clz": leading_zeros, "brev": reverse_bits}[given.opcode]
    return elementwise(given, context, function, [given.type], given.type if given.opcode == "brev" else "u32")


@instruction("bfind")
def build_find_highest(given: Instruction, context: Context) -> Step:
    """Position of the highest bit that is not the sign; 0xffffffff if there is none. `.shiftamt`: distance to it."""
    flags, width = given.allow("shiftamt"), 8 * DTYPES[given.type].itemsize
    unsigned = np.dtype(f"u{width // 8}")

    def find(a: Array) -> Array:
        magnitude = np.where(a < 0, ~a, a).view(unsigned) if a.dtype.kind == "i" else a
        zeros = leading_zeros(magnitude)
        found = zeros if "shiftamt" in flags else np.uint32(width - 1) - zeros
        return np.where(zeros == width, np.uint32(0xFFFFFFFF), found)

    return elementwise(given, context, find, [given.type], "u32")


@instruction("bfe")
def build_extract(given: Instruction, context: Context) -> Step:
    """`length` bits of a from `start` on; signed types extend the field's highest bit."""
    given.allow()
    dtype = DTYPES[given.type]
    width = 8 * dtype.itemsize

    def extract(a: Array, start: Array, length: Array) -> Array:
        start, length = (v & np.uint32(0xFF) for v in (start, length))
        stop = np.minimum(start + length, np.uint32(width))
        up = shift_left(a, np.uint32(width) - stop)  # the field's top bit becomes the top bit
        field = shift_right(up, np.uint32(width) - stop + np.minimum(start, stop))
        sign = a >> dtype.type(width - 1) if dtype.kind == "i" else dtype.type(0)
        return np.where(length == 0, dtype.type(0), np.where(start >= width, sign, field))

    return elementwise(given, context, extract, [given.type, "u32", "u32"], given.type)


@instruction("bfi")
def build_insert(given: Instruction, context: Context) -> Step:
    """`length` bits of a placed into b from `start` on."""
    given.allow()
    dtype = DTYPES[given.type]

    def insert(a: Array, b: Array, start: Array, length: Array) -> Array:
        start, length = (v & np.uint32(0xFF) for v in (start, length))
        ones = np.full(np.shape(start), np.array(-1).astype(dtype))
        mask = shift_left(~shift_left(ones, length), start)
        return (b & ~mask) | (shift_left(a, start) & mask)

    return elementwise(given, context, insert, [given.type, given.type, "u32", "u32"], given.type)


@instruction("lop3")
def build_logic(given: Instruction, context: Context) -> Step:
    """Any function of three bits: bit (a, b, c) of the table."""
    given.allow()
    table = int(given.operands[4], 0)

    def logic(a: Array, b: Array, c: Array, _: Array) -> Array:
        result = a & np.uint32(0)
        for row in range(8):
            if table >> row & 1:
                result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
        return result

    return elementwise(given, context, logic, ["b32"] * 4, "b32")


@instruction("prmt")
def build_permute(given: Instruction, context: Context) -> Step:
    """Four bytes chosen from the eight of {b, a}; bit 3 of a selector replicates the byte's sign."""
    given.allow()

    def permute(a: Array, b: Array, selector: Array) -> Array:
        pair = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
        result = selector & np.uint32(0)
        for k in range(4):
            choice = (selector >> np.uint32(4 * k)).astype(np.uint64)
            byte = (pair >> ((choice & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
            sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            chosen = np.where(choice & np.uint64(8), sign, byte).astype(np.uint32)
            result = result | (chosen << np.uint32(8 * k))
        return result

    return elementwise(given, context, permute, ["b32"] * 3, "b32")


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
