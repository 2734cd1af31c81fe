"""A decoded kernel: basic blocks, and the ways in which they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpulayers.emulator.context import Context, Reader, Step
from gpulayers.emulator.errors import Place
from gpulayers.emulator.program import Variable
from gpulayers.emulator.warp import WarpStep


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
    write: Callable[..., None] | None = None


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
