"""Integer arithmetic of several words, through the carry: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`."""

from __future__ import annotations

import numpy as np

from gpulayers.emulator.context import CARRY, Context, Index, Step
from gpulayers.emulator.integer import high_product
from gpulayers.emulator.program import DTYPES, Instruction
from gpulayers.emulator.registry import instruction

Array = np.ndarray


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
