"""The most common kind of instruction: a function of the operands, thread by thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpulayers.emulator.context import Context, Index, Step
from gpulayers.emulator.program import DTYPES, Instruction

Array = np.ndarray


def elementwise(
    given: Instruction, context: Context, function: Callable[..., Array], codes: list[str], result: str
) -> Step:
    """A step that applies `function` to the operands, read as `codes`, and writes the result as type `result`."""
    write = context.writer(given.operands[0], result, given)
    readers = context.readers(given, 1, codes)
    dtype = DTYPES[result]
    if len(readers) == 1:
        (first,) = readers
        return lambda group, index: write(group, index, _typed(function(first(group, index)), dtype))
    if len(readers) == 2:
        first, second = readers
        return lambda group, index: write(
            group, index, _typed(function(first(group, index), second(group, index)), dtype)
        )

    def step(group, index: Index) -> None:
        write(group, index, _typed(function(*[read(group, index) for read in readers]), dtype))

    return step


def _typed(value: Array, dtype: np.dtype) -> Array:
    return value if value.dtype == dtype else value.astype(dtype)
