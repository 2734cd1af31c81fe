"""What an instruction needs to know while it is being decoded: register slots, addresses of variables, operands."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulayers.emulator.program import DTYPES, Instruction, Routine
from gpulayers.emulator.specials import SPECIALS, WIDE

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group

Index = slice | np.ndarray  # which threads of the group an instruction runs for
Reader = Callable[["Group", Index], Any]  # an array, or a NumPy scalar that holds for all threads
Writer = Callable[["Group", Index, np.ndarray], None]
Step = Callable[["Group", Index], None]

SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 1 << 60, 1 << 61, 1 << 62  # generic addresses of the small spaces
CARRY = "%CC"  # the condition code that add.cc sets and addc reads
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_SYMBOL = re.compile(r"([A-Za-z_$%][\w$#]*)\s*(?:\+\s*(-?\w+))?$")


def _bits(text: str, size: int) -> int | None:
    """A literal's bits, or None where the text is no literal."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    if _INTEGER.match(text):
        digits = text.rstrip("U")
        octal = re.fullmatch(r"(-?)0([0-7]+)", digits)
        return int(octal[1] + octal[2], 8) if octal else int(digits, 0)
    if re.match(r"-?\d+\.\d*", text):
        return int.from_bytes(struct.pack("<d" if size == 8 else "<f", float(text)), "little")
    return None


class Context:
    """Register slots and symbols of one kernel. Slots of special registers are filled by the group at its start."""

    def __init__(self, routine: Routine, symbols: dict[str, int], used: dict[str, int]) -> None:
        self.routine, self.symbols = routine, symbols
        self.slots: dict[str, int] = {}
        self.dtypes: list[np.dtype] = []
        self.specials: dict[str, int] = {}
        self.uses = used  # how often each register is read
        for name, code in {**routine.registers, CARRY: "pred"}.items():
            self._new_slot(name, DTYPES[code])

    def _new_slot(self, name: str, dtype: np.dtype) -> int:
        self.slots[name] = len(self.dtypes)
        self.dtypes.append(dtype)
        return self.slots[name]

    def _slot(self, name: str) -> int | None:
        if name not in self.slots and name in SPECIALS:
            self.specials[name] = self._new_slot(name, np.dtype("u8" if name in WIDE else "u4"))
        return self.slots.get(name)

    def address(self, text: str) -> int | None:
        """The value of `variable` or `variable+offset`, or None where the text is neither."""
        found = _SYMBOL.match(text)
        if not found or found[1] not in self.symbols:
            return None
        return self.symbols[found[1]] + int(found[2] or "0", 0)

    def constant(self, text: str, dtype: np.dtype) -> np.ndarray | None:
        """The value of a literal or of an address; None for registers."""
        value = _bits(text, dtype.itemsize)
        if value is None:
            value = 32 if text == "WARP_SZ" else self.address(text)
        if value is None:
            return None
        size = dtype.itemsize
        return np.frombuffer((value & ((1 << 8 * size) - 1)).to_bytes(size, "little"), dtype)[0]

    def reader(self, text: str, code: str, instruction: Instruction) -> Reader:
        """A function that reads an operand as PTX type `code`, reinterpreting or truncating the register's bits."""
        if text.startswith("!"):
            inner = self.reader(text[1:].strip(), code, instruction)
            return lambda group, index: ~inner(group, index)
        dtype = DTYPES[code]
        if code == "pred" and _INTEGER.match(text):
            value = np.bool_(int(text, 0) != 0)
            return lambda group, index: value
        constant = self.constant(text, dtype)
        if constant is not None:
            return lambda group, index: constant
        slot = self._slot(text)
        if slot is None:
            raise instruction.unknown(f"operand {text}")
        return _register_reader(slot, self.dtypes[slot], dtype)

    def writer(self, text: str, code: str, instruction: Instruction) -> Writer:
        """A function that writes values of PTX type `code` to a register, extending them where it is wider."""
        if text == "_":
            return lambda group, index, value: None
        slot = self.slots.get(text)
        if slot is None:
            raise instruction.unknown(f"destination {text}")
        return _register_writer(slot, self.dtypes[slot], DTYPES[code])

    def readers(self, instruction: Instruction, start: int, codes: list[str]) -> list[Reader]:
        """Readers for as many operands as there are codes, from operand `start` on."""
        if len(instruction.operands) != start + len(codes):
            raise instruction.unknown(f"{len(instruction.operands)} operands")
        pairs = zip(instruction.operands[start:], codes, strict=True)
        return [self.reader(text, code, instruction) for text, code in pairs]


def _register_reader(slot: int, declared: np.dtype, wanted: np.dtype) -> Reader:
    if declared == wanted:
        return lambda group, index: group.registers[slot][index]
    if declared.itemsize == wanted.itemsize:
        return lambda group, index: group.registers[slot][index].view(wanted)
    raw, part = np.dtype(f"u{declared.itemsize}"), np.dtype(f"u{wanted.itemsize}")
    return lambda group, index: group.registers[slot][index].view(raw).astype(part).view(wanted)


def _register_writer(slot: int, declared: np.dtype, given: np.dtype) -> Writer:
    if declared == given:

        def write(group: Group, index: Index, value: np.ndarray) -> None:
            group.registers[slot][index] = value
    elif declared.itemsize == given.itemsize:

        def write(group: Group, index: Index, value: np.ndarray) -> None:
            group.registers[slot][index] = value.view(declared)
    else:
        extended = np.dtype(f"{given.kind if given.kind in 'iu' else 'u'}{declared.itemsize}")
        raw = given if given.kind in "iu" else np.dtype(f"u{given.itemsize}")

        def write(group: Group, index: Index, value: np.ndarray) -> None:
            group.registers[slot][index] = value.view(raw).astype(extended).view(declared)

    return write


def pieces(operand: str) -> list[str]:
    """The parts of a `{a, b}` operand, or the operand alone."""
    return [part.strip() for part in operand.strip("{} ").split(",")]
