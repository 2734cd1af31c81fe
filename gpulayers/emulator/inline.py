"""Calls of device functions are expanded in place: every call site gets a copy of the callee under names of its own.

Parameters and results in `.param` space become local variables. Recursion and calls by pointer are refused.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpulayers.emulator.program import Instruction, Program, Routine, Variable

_WORD = re.compile(r"[A-Za-z_$%][\w$#]*")
MAX_DEPTH = 32
BUILTINS = ("__assertfail", "vprintf")


def expand(program: Program, kernel: Routine) -> Routine:
    """A copy of the kernel without calls."""
    whole = Routine(kernel.name, True, kernel.parameters, kernel.results, tables=dict(kernel.tables))
    _Expansion(program, whole).copy(kernel, "", {}, "", 0)
    return whole


class _Expansion:
    def __init__(self, program: Program, whole: Routine) -> None:
        self.program, self.whole, self.calls = program, whole, 0

    def copy(self, routine: Routine, prefix: str, names: dict[str, str], after: str, depth: int) -> None:
        """Append a routine's code with all its names prefixed; `ret` of a callee jumps to the label `after`."""
        if depth > MAX_DEPTH:
            call = routine.code[0] if routine.code else None
            raise call.unknown("recursion") if call else RecursionError(routine.name)
        names = {**names, **{name: prefix + name for name in routine.registers}}
        names.update({name: prefix + name for name in (*routine.labels, *routine.tables)})
        for register, code in routine.registers.items():
            self.whole.registers[prefix + register] = code
        for name, variable in routine.variables.items():
            names[name] = self._declare(prefix, variable)
        for table, labels in routine.tables.items():
            self.whole.tables[prefix + table] = [prefix + label for label in labels]
        labels_at: dict[int, list[str]] = {}
        for label, position in routine.labels.items():
            labels_at.setdefault(position, []).append(prefix + label)
        local = {name for name, variable in routine.variables.items() if variable.space in ("local", "param")}
        local |= {variable.name for variable in (*routine.parameters, *routine.results)} if prefix else set()
        for position, given in enumerate([*routine.code, None]):
            for label in labels_at.get(position, ()):
                self.whole.labels[label] = len(self.whole.code)
            if given is not None:
                self._instruction(given, names, local, after, depth)

    def _declare(self, prefix: str, variable: Variable) -> str:
        name = variable.name if variable.space == "shared" else prefix + variable.name
        space = "local" if variable.space == "param" else variable.space
        self.whole.variables[name] = replace(variable, name=name, space=space)
        return name

    def _instruction(self, given: Instruction, names: dict[str, str], local: set[str], after: str, depth: int) -> None:
        if given.opcode == "call":
            self._call(given, names, depth)
            return
        words = {word for operand in given.operands for word in _WORD.findall(operand)}
        operands = tuple(_rename(operand, names) for operand in given.operands)
        predicate = names.get(given.predicate, given.predicate) if given.predicate else None
        opcode, flags = given.opcode, given.flags
        if "param" in flags and words & local:
            flags = tuple("local" if flag == "param" else flag for flag in flags)
        if opcode == "ret" and after:
            opcode, operands = "bra", (after,)
        changed = replace(given, opcode=opcode, flags=flags, operands=operands, predicate=predicate)
        self.whole.code.append(changed)

    def _call(self, given: Instruction, names: dict[str, str], depth: int) -> None:
        """`call (results), function, (arguments);` with the first or last list left out if empty."""
        groups = [operand for operand in given.operands if operand.startswith("(")]
        targets = [operand for operand in given.operands if not operand.startswith("(")]
        callee = self.program.routines.get(targets[0]) if targets else None
        if targets and targets[0] in BUILTINS:
            lists = [operand.strip("()").split(",") for operand in groups]
            variables = [_rename(name.strip(), names) for part in lists for name in part]
            self.whole.code.append(replace(given, flags=(), operands=(targets[0], *variables)))
            return
        if callee is None or given.predicate:
            raise given.unknown(f"call of {targets[0] if targets else '?'}")
        lists = [[name.strip() for name in group.strip("()").split(",") if name.strip()] for group in groups]
        results = lists.pop(0) if callee.results else []
        arguments = lists[0] if lists else []
        self.calls += 1
        prefix = f"%call{self.calls}_"
        formal = [variable.name for variable in (*callee.results, *callee.parameters)]
        bound = {name: names.get(actual, actual) for name, actual in zip(formal, [*results, *arguments], strict=True)}
        after = prefix + "return"
        self.copy(callee, prefix, bound, after, depth + 1)
        self.whole.labels[after] = len(self.whole.code)


def _rename(operand: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda found: names.get(found[0], found[0]), operand)
