"""Where variables and parameters lie in their memories."""

from __future__ import annotations

import re

from gpulayers.emulator.blocks import SharedLayout
from gpulayers.emulator.program import Program, Routine, Variable

_WORD = re.compile(r"[A-Za-z_$%][\w$#]*")


SHARED_GAP = 16  # bytes between shared variables, so that running over the end of one is seen


def shared_layout(program: Program, routine: Routine) -> SharedLayout:
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


def local_layout(routine: Routine) -> tuple[dict[str, int], int]:
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
