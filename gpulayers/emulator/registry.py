"""The table of known instructions: opcode -> builder, which turns an Instruction into a step over threads."""

from __future__ import annotations

from collections.abc import Callable

from gpulayers.emulator.context import Context, Step
from gpulayers.emulator.program import Instruction

Builder = Callable[[Instruction, Context], Step]
BUILDERS: dict[str, Builder] = {}


def instruction(*opcodes: str) -> Callable[[Builder], Builder]:
    """Register a builder for the opcodes."""

    def register(builder: Builder) -> Builder:
        for opcode in opcodes:
            BUILDERS[opcode] = builder
        return builder

    return register


def build(given: Instruction, context: Context) -> Step:
    """The step for an instruction; UnknownInstruction where there is none."""
    if given.opcode not in BUILDERS:
        raise given.unknown()
    return BUILDERS[given.opcode](given, context)
