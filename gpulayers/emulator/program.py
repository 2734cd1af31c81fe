"""A PTX module as data: kernels, device functions, variables and instructions, as the parser leaves them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpulayers.emulator.errors import Place, UnknownInstruction

# PTX type -> NumPy dtype of its storage. bf16 and packed pairs are kept as raw bits.
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(code)
    for name, code in {
        "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2",
        "b32": "u4", "u32": "u4", "s32": "i4", "b64": "u8", "u64": "u8", "s64": "i8",
        "f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8", "f16x2": "u4", "bf16x2": "u4", "tf32": "u4",
    }.items()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """`@!predicate opcode.flags.types operands;`, for instance `@!%p1 add.ftz.f32 %f1, %f2, %f3;`."""

    opcode: str
    flags: tuple[str, ...]
    types: tuple[str, ...]
    operands: tuple[str, ...]
    predicate: str | None
    negated: bool
    place: Place

    @property
    def name(self) -> str:
        """The instruction's full name with its modifiers."""
        return ".".join((self.opcode, *self.flags, *self.types))

    @property
    def type(self) -> str:
        """The last type in the name, which most instructions work in."""
        if not self.types:
            raise self.unknown()
        return self.types[-1]

    def unknown(self, reason: str = "") -> UnknownInstruction:
        """The exception for an instruction that the emulator does not know."""
        detail = f" ({reason})" if reason else ""
        return UnknownInstruction(f"PTX instruction {self.name} is not known to the emulator{detail}", place=self.place)

    def allow(self, *flags: str) -> frozenset[str]:
        """The flags, all of which must be among `flags`: a modifier is never ignored silently."""
        strange = set(self.flags) - set(flags)
        if strange:
            raise self.unknown(f"modifier .{sorted(strange)[0]}")
        return frozenset(self.flags)


@dataclass(slots=True)
class Variable:
    """A variable in global, constant, shared, local or parameter space; `data` is its initial value, if any."""

    name: str
    space: str
    align: int
    size: int
    data: bytes | None = None
    symbols: dict[int, str] = field(default_factory=dict)  # byte offset -> variable whose address stands there
    dynamic: bool = False


@dataclass(slots=True)
class Routine:
    """A kernel or a device function: parameters, registers (name -> type), variables, code and labels."""

    name: str
    is_kernel: bool
    parameters: list[Variable]
    results: list[Variable]
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)  # branch tables of brx.idx


@dataclass(slots=True)
class Program:
    """A parsed PTX module."""

    version: str
    target: str
    variables: dict[str, Variable]
    routines: dict[str, Routine]

    @property
    def kernels(self) -> dict[str, Routine]:
        """The routines that can be launched."""
        return {name: routine for name, routine in self.routines.items() if routine.is_kernel}
