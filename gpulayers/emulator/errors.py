"""What the emulator reports: each kind of mistake has its own exception."""

from __future__ import annotations

from typing import NamedTuple

Coordinates = tuple[int, int, int]


class Place(NamedTuple):
    """Where in the source a PTX instruction comes from; `text` is the source line, or the instruction itself."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.text}".rstrip(": ")


class EmulatorError(RuntimeError):
    """Base of all that the emulator finds wrong with a kernel or a launch.

    `kernel`, `block`, `thread` and `place` (file, line, source text) are None where they do not apply.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str | None = None,
        block: Coordinates | None = None,
        thread: Coordinates | None = None,
        place: Place | None = None,
    ) -> None:
        self.message, self.kernel, self.block, self.thread, self.place = message, kernel, block, thread, place
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        parts = [self.kernel] if self.kernel else []
        if self.block is not None and self.thread is not None:
            parts.append(f"block {self.block} thread {self.thread}")
        parts.append(self.message)
        text = ": ".join(parts)
        return f"{text}\n  at {self.place}" if self.place else text


class OutOfBounds(EmulatorError):
    """A load, store or atomic touches memory that the kernel was not given."""


class Misaligned(EmulatorError):
    """An address is not a multiple of the access size; the GPU would stop with "misaligned address"."""


class UninitialisedRead(EmulatorError):
    """Shared memory is read before anything was stored there."""


class DataRace(EmulatorError):
    """Two threads touch the same memory, one of them writes, and nothing orders the two."""


class WriteToConstant(EmulatorError):
    """A store through a pointer that the kernel's signature declares `const`, or to constant memory."""


class BarrierDivergence(EmulatorError):
    """Some threads of a block wait at a barrier that others never reach."""


class WarpDivergence(EmulatorError):
    """A warp-wide instruction names lanes that do not execute it, or reads from a lane that is not there."""


class EndlessLoop(EmulatorError):
    """The kernel did not finish within the limit of steps."""


class DeviceAssert(EmulatorError):
    """`assert` failed, or the kernel executed `trap`."""


class UnknownInstruction(EmulatorError):
    """A PTX instruction, or a modifier of one, that the emulator does not know; never skipped."""


class ParseError(EmulatorError):
    """Text that is not the PTX which the emulator understands."""


class CompileError(EmulatorError):
    """NVRTC refused the source; the message is its log."""


class ToolkitMissing(EmulatorError, ImportError):
    """The wheels of NVRTC or of the CUDA headers are not installed."""


class ArgumentError(EmulatorError, TypeError):
    """A kernel argument does not fit the kernel's signature."""


class LaunchError(EmulatorError):
    """A grid, block or shared-memory size that the device refuses."""
