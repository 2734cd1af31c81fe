"""A kernel's instructions -> basic blocks of steps, each of which works on all threads at once."""

from __future__ import annotations

import collections
import itertools
import re

from gpulayers.emulator import (  # noqa: F401 each writes its instructions into the registry when imported
    access,
    atomics,
    bits,
    carry,
    compare,
    convert,
    floating,
    hostcalls,
    integer,
    moves,
    tensorcore,
    warp,
)
from gpulayers.emulator.blocks import Barrier, Block, Code, Converge, End, Exit, Jump, Table
from gpulayers.emulator.context import Context, Index, Reader, Step
from gpulayers.emulator.errors import DeviceAssert
from gpulayers.emulator.indexing import positions, select
from gpulayers.emulator.inline import expand
from gpulayers.emulator.layout import local_layout, parameter_offsets, shared_layout
from gpulayers.emulator.program import Instruction, Program, Routine
from gpulayers.emulator.registry import build, instruction
from gpulayers.emulator.warp import WarpStep

NO_EFFECT = ("nop", "nanosleep", "griddepcontrol", "pmevent")
_WORD = re.compile(r"[A-Za-z_$%][\w$#]*")


def _uses(routine: Routine) -> dict[str, int]:
    """How often each register is read: all words but the destination of an instruction that has one."""
    uses: collections.Counter[str] = collections.Counter()
    for given in routine.code:
        start = 0 if given.opcode in ("st", "red", "bra", "bar", "barrier") else 1
        for operand in given.operands[start:]:
            uses.update(_WORD.findall(operand))
        if start and given.operands and given.operands[0].startswith("["):
            uses.update(_WORD.findall(given.operands[0]))
        if given.predicate:
            uses[given.predicate] += 1
    return uses


def decode(program: Program, name: str, addresses: dict[str, int]) -> Code:
    """Decode one kernel; `addresses` gives those of the module's global and constant variables."""
    routine = expand(program, program.kernels[name])
    shared, (local, local_size) = shared_layout(program, routine), local_layout(routine)
    symbols = {**addresses, **local, **{variable: place[0] for variable, place in shared.offsets.items()}}
    symbols.update(dict.fromkeys(shared.dynamic_names, shared.dynamic_offset))
    offsets, _ = parameter_offsets(routine.parameters)
    symbols.update({variable.name: at for variable, at in zip(routine.parameters, offsets, strict=True)})
    context = Context(routine, symbols, _uses(routine))
    fences = any(given.opcode in ("membar", "fence") for given in routine.code)
    blocks = _Decoder(routine, context).blocks()
    return Code(name, routine.parameters, blocks, context, shared, local_size, fences)


class _Decoder:
    """Cuts the code at labels, branches, barriers and warp instructions."""

    def __init__(self, routine: Routine, context: Context) -> None:
        self.routine, self.context = routine, context
        targets = set(routine.labels.values()) | {0}
        for position, given in enumerate(routine.code):
            if _is_control(given):
                targets |= {position, position + 1} if _is_wait(given) else {position + 1}
        self.leaders = sorted(target for target in targets if target < len(routine.code))
        self.number = {leader: number for number, leader in enumerate(self.leaders)}

    def blocks(self) -> list[Block]:
        edges = [*self.leaders, len(self.routine.code)]
        return [self._block(start, stop) for start, stop in itertools.pairwise(edges)]

    def target(self, label: str, given: Instruction) -> int:
        if label not in self.routine.labels:
            raise given.unknown(f"label {label}")
        position = self.routine.labels[label]
        return self.number.get(position, len(self.leaders))  # a label at the very end: no block, so the thread ends

    def _block(self, start: int, stop: int) -> Block:
        block = Block(length=stop - start, place=self.routine.code[start].place)
        for given in self.routine.code[start:stop]:
            if _is_control(given):
                block.end = self._end(given, block)
                block.place = given.place
            elif given.opcode not in NO_EFFECT:
                block.steps.append(self._step(given))
        return block

    def _predicate(self, given: Instruction) -> Reader | None:
        return self.context.reader(given.predicate, "pred", given) if given.predicate else None

    def _step(self, given: Instruction) -> Step:
        step, predicate = build(given, self.context), self._predicate(given)
        return step if predicate is None else _predicated(step, predicate, given.negated)

    def _end(self, given: Instruction, block: Block) -> End:
        predicate = self._predicate(given)
        if given.opcode == "bra":
            given.allow("uni")
            return Jump(self.target(given.operands[0], given), predicate, given.negated)
        if given.opcode == "brx":
            labels = self.routine.tables.get(given.operands[1])
            if labels is None or predicate is not None:
                raise given.unknown()
            selector = self.context.reader(given.operands[0], "u32", given)
            return Table([self.target(label, given) for label in labels], selector)
        if given.opcode in ("ret", "exit"):
            return Exit(predicate, given.negated)
        if predicate is not None:
            block.skip = (predicate, given.negated)
        if _is_warp_wait(given):
            step = build(given, self.context)
            if not isinstance(step, WarpStep):
                raise given.unknown()
            return Converge(step, given.place, given.name)
        return self._barrier(given)

    def _barrier(self, given: Instruction) -> Barrier:
        given.allow("sync", "cta", "aligned", "red", "popc", "and", "or")
        if "sync" not in given.flags and "red" not in given.flags:
            raise given.unknown()
        read = self.context.reader
        if "red" not in given.flags:
            number, *rest = given.operands
            threads = read(rest[0], "u32", given) if rest else None
            return Barrier(read(number, "u32", given), threads, given.place)
        reduce = next(flag for flag in given.flags if flag in ("popc", "and", "or"))
        target, number, *count, source = given.operands
        write = self.context.writer(target, "u32" if reduce == "popc" else "pred", given)
        threads = read(count[0], "u32", given) if count else None
        return Barrier(read(number, "u32", given), threads, given.place, reduce, read(source, "pred", given), write)


def _predicated(step: Step, predicate: Reader, negated: bool) -> Step:
    def run(group, index: Index) -> None:
        mask = predicate(group, index)
        chosen = select(index, ~mask if negated else mask)
        if chosen is not None:
            step(group, chosen)

    return run


WARP_OPCODES = ("shfl", "vote", "match", "redux", "elect", "mma", "ldmatrix", "stmatrix", "movmatrix")


def _is_warp_wait(given: Instruction) -> bool:
    return given.opcode in WARP_OPCODES or (given.opcode in ("bar", "barrier") and "warp" in given.flags)


def _is_wait(given: Instruction) -> bool:
    return _is_warp_wait(given) or given.opcode in ("bar", "barrier")


def _is_control(given: Instruction) -> bool:
    return given.opcode in ("bra", "brx", "ret", "exit") or _is_wait(given)


@instruction("bar", "barrier")
def build_warp_barrier(given: Instruction, context: Context) -> Step:
    """bar.warp.sync; block barriers are ends of basic blocks."""
    given.allow("warp", "sync")
    (mask,) = [context.reader(given.operands[0], "b32", given)]
    return WarpStep(lambda group, index: group.pass_warp_barrier(index), mask, True)


@instruction("trap", "brkpt")
def build_trap(given: Instruction, context: Context) -> Step:
    """`trap` ends the kernel with an error."""
    message = f"{given.opcode} executed"

    def step(group, index: Index) -> None:
        raise group.error(DeviceAssert, message, given.place, int(positions(index)[0]))

    return step


@instruction("setmaxnreg")
def build_register_hint(given: Instruction, context: Context) -> Step:
    return lambda group, index: None
