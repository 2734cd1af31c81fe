"""Bitwise instructions: logic, shifts, counts, bit fields, permutations."""

from __future__ import annotations

import numpy as np

from gpulayers.emulator.context import Context, Step
from gpulayers.emulator.elementwise import elementwise
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray


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
