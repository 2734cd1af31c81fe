"""What kernels say to the host: `printf` and a failed `assert`."""

from __future__ import annotations

import re
import struct
import sys
from typing import TYPE_CHECKING

import numpy as np

from gpulayers.emulator.context import LOCAL_WINDOW, Context, Index, Step
from gpulayers.emulator.errors import DeviceAssert
from gpulayers.emulator.indexing import positions
from gpulayers.emulator.program import Instruction
from gpulayers.emulator.regions import Access
from gpulayers.emulator.registry import instruction

if TYPE_CHECKING:
    from gpulayers.emulator.group import Group

MOST_CHARACTERS = 4096
_CONVERSION = re.compile(r"%(?P<form>[-+ #0]*\d*(?:\.\d+)?)(?P<length>hh|h|ll|l|z|j|t)?(?P<kind>[diouxXcsfFeEgGp%])")


class _Reader:
    """One thread's view of memory."""

    def __init__(self, group: Group, thread: int, given: Instruction) -> None:
        self.group, self.place = group, given.place
        self.index = slice(thread, thread + 1, 1)

    def bytes(self, address: int, size: int) -> bytes:
        access = Access(1, False, True, self.place)
        addresses = np.array([address], np.uint64)
        (found,) = self.group.memory.split(self.group, addresses, access, self.index)
        region, where, _, _ = found
        start = int(where[0])
        return region.data[start : start + size].tobytes()

    def word(self, address: int, form: str) -> int | float:
        return struct.unpack(form, self.bytes(address, struct.calcsize(form)))[0]

    def string(self, address: int) -> str:
        return self.bytes(address, MOST_CHARACTERS).split(b"\0", 1)[0].decode(errors="replace")


def formatted(text: str, memory: _Reader, arguments: int) -> str:
    """C's format with its arguments, which lie behind each other at `arguments`, each aligned to its size."""
    at = arguments

    def take(form: str) -> int | float:
        nonlocal at
        size = struct.calcsize(form)
        at = -(-at // size) * size + size
        return memory.word(at - size, form)

    def convert(found: re.Match[str]) -> str:
        kind, form = found["kind"], found["form"]
        if kind == "%":
            return "%"
        if kind in "fFeEgG":
            return f"%{form}{kind}" % take("<d")
        if kind == "s":
            return f"%{form}s" % memory.string(int(take("<Q")))
        if kind == "p":
            return f"{int(take('<Q')):#x}"
        wide = found["length"] in ("l", "ll", "z", "j", "t")
        signed = kind in "dic"
        value = int(take(("<q" if signed else "<Q") if wide else ("<i" if signed else "<I")))
        return f"%{form}{'d' if kind in 'iu' else kind}" % value

    return _CONVERSION.sub(convert, text)


@instruction("call")
def build_call(given: Instruction, context: Context) -> Step:
    """`vprintf` and `__assertfail`; calls of other functions have been expanded. Operands: name, results, arguments."""
    name, *variables = given.operands
    offsets = [context.address(variable) for variable in variables]
    if name not in ("vprintf", "__assertfail") or any(offset is None for offset in offsets):
        raise given.unknown(f"call of {name}")
    places = [LOCAL_WINDOW + int(offset or 0) for offset in offsets]

    def say(group: Group, index: Index) -> None:
        _, text, arguments = places
        for thread in positions(index):
            memory = _Reader(group, int(thread), given)
            words = formatted(memory.string(int(memory.word(text, "<Q"))), memory, int(memory.word(arguments, "<Q")))
            sys.stdout.write(words)

    def fail(group: Group, index: Index) -> None:
        thread = int(positions(index)[0])
        memory = _Reader(group, thread, given)
        message = memory.string(int(memory.word(places[0], "<Q")))
        raise group.error(DeviceAssert, f"assert({message}) failed", given.place, thread)

    return say if name == "vprintf" else fail
