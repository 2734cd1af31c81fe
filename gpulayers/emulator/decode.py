"""A kernel's instructions -> basic blocks of steps, each of which works on all threads at once."""

from __future__ import annotations

import collections
import itertools
import re
from dataclasses import dataclass, field

from gpulayers.emulator import access, atomics, floating, integer, moves, tensorcore, warp  # noqa: F401  (they fill the registry)
from gpulayers.emulator.context import Context, Index, Reader, Step
from gpulayers.emulator.errors import DeviceAssert, Place
from gpulayers.emulator.indexing import positions, select
from gpulayers.emulator.inline import expand
from gpulayers.emulator.program import Instruction, Program, Routine, Variable
from gpulayers.emulator.registry import build, instruction
from gpulayers.emulator.warp import WarpStep

SHARED_GAP = 16  # bytes between shared variables, so that running over the end of one is seen
NO_EFFECT = ("nop", "nanosleep", "griddepcontrol", "pmevent")
_WORD = re.compile(r"[A-Za-z_$%][\w$#]*")


@dataclass(slots=True)
class Jump:
    """To `target`, for threads whose predicate holds; the others fall through."""

    target: int
    predicate: Reader | None = None
    negated: bool = False


@dataclass(slots=True)
class Table:
    """`brx.idx`: to the target that a register numbers."""

    targets: list[int]
    selector: Reader


@dataclass(slots=True)
class Exit:
    """The end of the thread, or of those whose predicate holds."""

    predicate: Reader | None = None
    negated: bool = False


@dataclass(slots=True)
class Barrier:
    """A barrier of the block, or of `threads` of its threads; `reduce` combines a predicate over the block."""

    number: Reader
    threads: Reader | None
    place: Place
    reduce: str = ""
    source: Reader | None = None
    write: object = None


@dataclass(slots=True)
class Converge:
    """An instruction of the whole warp: runs when the lanes named by its mask are there."""

    step: WarpStep
    place: Place
    name: str


End = Jump | Table | Exit | Barrier | Converge


@dataclass(slots=True)
class Block:
    """Steps without a branch, and what follows them. `end` None: the next block. `skip`: (predicate, negated) of
    a barrier or warp instruction that only some threads execute."""

    place: Place
    steps: list[Step] = field(default_factory=list)
    end: End | None = None
    length: int = 0  # PTX instructions
    skip: tuple[Reader, bool] | None = None


@dataclass(slots=True)
class SharedLayout:
    """Where shared variables lie within a block's shared memory."""

    offsets: dict[str, tuple[int, int]]  # name -> (offset, size) of static ones
    static: int  # bytes as laid out here
    declared: int  # bytes as on the device
    dynamic_names: list[str]
    dynamic_offset: int


@dataclass(slots=True)
class Code:
    """A decoded kernel."""

    name: str
    parameters: list[Variable]
    blocks: list[Block]
    context: Context
    shared: SharedLayout
    local_size: int
    has_fences: bool


def _shared_layout(program: Program, routine: Routine) -> SharedLayout:
    used = {word for given in routine.code for operand in given.operands for word in _WORD.findall(operand)}
    both = [*program.variables.values(), *routine.variables.values()]
    variables = [variable for variable in both if variable.space == "shared" and variable.name in used]
    offset, declared, offsets = 0, 0, {}
    for variable in (one for one in variables if not one.dynamic):
        offset, declared = (
            -(-offset // variable.align) * variable.align,
            -(-declared // variable.align) * variable.align,
        )
        offsets[variable.name] = (offset, variable.size)
        offset, declared = offset + variable.size + SHARED_GAP, declared + variable.size
    dynamic = [variable for variable in variables if variable.dynamic]
    align = max([16, *(variable.align for variable in dynamic)])
    start = -(-offset // align) * align
    return SharedLayout(offsets, offset, declared, [variable.name for variable in dynamic], start)


def _local_layout(routine: Routine) -> tuple[dict[str, int], int]:
    offset, offsets = 0, {}
    for variable in routine.variables.values():
        if variable.space == "local":
            offset = -(-offset // variable.align) * variable.align
            offsets[variable.name] = offset
            offset += variable.size
    return offsets, offset


def parameter_offsets(parameters: list[Variable]) -> tuple[list[int], int]:
    """Each parameter at its alignment, and the size of all."""
    offset, offsets = 0, []
    for parameter in parameters:
        offset = -(-offset // parameter.align) * parameter.align
        offsets.append(offset)
        offset += parameter.size
    return offsets, -(-offset // 16) * 16


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
    shared, (local, local_size) = _shared_layout(program, routine), _local_layout(routine)
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
    return WarpStep(lambda group, index: group.pass_warp_barrier(index), mask, True)  # type: ignore[return-value]


@instruction("trap", "brkpt", "call")
def build_trap(given: Instruction, context: Context) -> Step:
    """`trap`, a failed `assert`; calls of other functions have been expanded."""
    if given.opcode == "call" and given.operands[0] == "vprintf":
        return lambda group, index: None  # output is not shown
    message = "assert failed" if given.opcode == "call" else f"{given.opcode} executed"

    def step(group, index: Index) -> None:
        raise group.error(DeviceAssert, message, given.place, int(positions(index)[0]))

    return step


@instruction("setmaxnreg")
def build_register_hint(given: Instruction, context: Context) -> Step:
    return lambda group, index: None
