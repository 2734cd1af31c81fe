"""PTX text -> Program.

The parser follows the PTX ISA's grammar as far as NVRTC uses it: directives, nested scopes with registers of their
own (inline assembly in NVIDIA's headers), branch tables, and `.loc` lines, which tie an instruction to the source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpulayers.emulator.errors import ParseError, Place
from gpulayers.emulator.program import DTYPES, Instruction, Program, Routine, Variable
from gpulayers.emulator.variables import NAME, parse_variable, split_operands

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(rf"({NAME})\s*:(?!:)\s*")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+([^\n]*)")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_INSTRUCTION = re.compile(rf"(?:@(!?)({NAME})\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s*((?:\.\w+\s+)+)(.*)$", re.DOTALL)
_HEAD = re.compile(
    rf"(?:\.(?:visible|extern|weak)\s+)*\.(?P<kind>entry|func)\s*(?:\((?P<results>[^)]*)\)\s*)?"
    rf"(?P<name>{NAME})\s*(?:\((?P<parameters>[^)]*)\))?(?P<rest>[^{{;]*)$",
    re.DOTALL,
)
_CUDA_HEADER = re.compile(r"[/\\](nvidia|cuda[^/\\]*)[/\\].*include[/\\]")
_IGNORED = (".pragma", ".callprototype", ".maxntid", ".minnctapersm", ".reqntid", ".maxnreg", ".noreturn", ".alias")


class _Sources:
    """The text behind `.file` and `.loc`: the caller's own source by name, included files read from disk."""

    def __init__(self, text: str, name: str, source: str | None) -> None:
        self.paths = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text))
        self.lines: dict[str, list[str]] = {}
        if source is not None:
            self.lines[Path(name).name] = source.splitlines()

    def is_cuda_header(self, number: str) -> bool:
        return bool(_CUDA_HEADER.search(self.paths.get(number, "")))

    def place(self, number: str, line: int) -> Place:
        path = self.paths.get(number, "?")
        name = Path(path).name
        if name not in self.lines:
            try:
                self.lines[name] = Path(path).read_text(errors="replace").splitlines()
            except OSError:
                self.lines[name] = []
        lines = self.lines[name]
        return Place(name, line, lines[line - 1].strip() if 0 < line <= len(lines) else "")


def _statements(text: str, start: int) -> tuple[list[str], int]:
    """The statements of the body that opens at `start` (just behind its brace), and where it ends.

    Braces that open and close scopes are statements of their own; `.loc` ends with its line."""
    found: list[str] = []
    depth, position, length = 1, start, len(text)
    while depth:
        while position < length and text[position].isspace():
            position += 1
        if position >= length:
            raise ParseError("PTX ends inside a function")
        character = text[position]
        if character in "{}":
            depth += 1 if character == "{" else -1
            found.append(character)
            position += 1
            continue
        if character == ";":
            position += 1
            continue
        label = _LABEL.match(text, position)
        if label:
            found.append(label[1] + ":")
            position = label.end()
            continue
        line_directive = _LOC.match(text, position)
        end = text.find("\n" if line_directive else ";", position)
        if end < 0:
            raise ParseError("PTX ends inside a statement")
        found.append(text[position:end].strip())
        position = end + 1
    return found[:-1], position


def _split_name(name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    opcode, *parts = name.split(".")
    types = tuple(part for part in parts if part in DTYPES)
    return opcode, tuple(part for part in parts if part not in DTYPES), types


class _Body:
    """Fills a Routine from its statements, keeping the scopes' registers apart by renaming them."""

    def __init__(self, routine: Routine, sources: _Sources) -> None:
        self.routine, self.sources = routine, sources
        self.scopes: list[dict[str, str]] = [{}]
        self.place = Place(routine.name, 0, "")
        self.pending_label = ""

    def read(self, statements: Sequence[str]) -> None:
        for statement in statements:
            if statement == "{":
                self.scopes.append({})
            elif statement == "}":
                self.scopes.pop()
            elif statement.endswith(":") and not statement.startswith("."):
                self.pending_label = self.declare_label(statement[:-1])
            elif statement.startswith("."):
                self.directive(statement)
            else:
                self.instruction(statement)

    def declare_label(self, name: str) -> str:
        if len(self.scopes) > 1:
            unique = f"{name}#{len(self.routine.labels)}"
            self.scopes[-1][name] = unique
            name = unique
        self.routine.labels[name] = len(self.routine.code)
        return name

    def directive(self, text: str) -> None:
        if _LOC.match(text):
            self.location(text)
        elif text.startswith(".reg"):
            self.registers(text)
        elif text.startswith(".branchtargets"):
            targets = split_operands(text.split(None, 1)[1])
            self.routine.tables[self.pending_label] = targets
        elif not text.startswith(_IGNORED):
            self.declare_variable(parse_variable(text))

    def declare_variable(self, variable: Variable) -> None:
        """Parameters of calls are declared anew in the scope of every call, under the same names."""
        if len(self.scopes) > 1:
            name, variable.name = variable.name, f"{variable.name}#{len(self.routine.variables)}"
            self.scopes[-1][name] = variable.name
        self.routine.variables[variable.name] = variable

    def location(self, text: str) -> None:
        found = _LOC.match(text)
        if not found or found[2] == "0":
            return  # line 0 means "no line": the previous one is the better answer
        self.place = self.sources.place(found[1], int(found[2]))
        outer = _INLINED.search(found[3])
        if outer and self.sources.is_cuda_header(found[1]):  # a line of NVIDIA's headers helps nobody
            self.place = self.sources.place(outer[1], int(outer[2]))

    def registers(self, text: str) -> None:
        found = _REGISTERS.match(text)
        if not found:
            raise ParseError(f"PTX register declaration not understood: {text}")
        code = found[1].split()[-1].lstrip(".")
        for name in split_operands(found[2]):
            several = re.fullmatch(rf"({NAME})<(\d+)>", name)
            names = [f"{several[1]}{k}" for k in range(int(several[2]))] if several else [name]
            for one in names:
                self.declare_register(one, code)

    def declare_register(self, name: str, code: str) -> None:
        if code not in DTYPES:
            raise ParseError(f"PTX registers of type .{code} are not known to the emulator")
        unique = name
        if len(self.scopes) > 1:
            unique = f"{name}#{len(self.routine.registers)}"
            self.scopes[-1][name] = unique
        self.routine.registers[unique] = code

    def resolve(self, operand: str) -> str:
        renamed = {name: unique for scope in self.scopes[1:] for name, unique in scope.items()}
        if not renamed:
            return operand
        return re.sub(NAME, lambda found: renamed.get(found[0], found[0]), operand)

    def instruction(self, text: str) -> None:
        found = _INSTRUCTION.match(text)
        if not found:
            raise ParseError(f"PTX instruction not understood: {text}")
        negation, predicate, name, rest = found.groups()
        opcode, flags, types = _split_name(name)
        operands = tuple(self.resolve(operand) for operand in split_operands(rest))
        place = self.place if self.place.line else Place(self.routine.name, 0, " ".join(text.split()))
        predicate = self.resolve(predicate) if predicate else None
        self.routine.code.append(Instruction(opcode, flags, types, operands, predicate, negation == "!", place))


def _variables(text: str | None) -> list[Variable]:
    return [parse_variable(part) for part in split_operands(text or "")]


def parse(text: str, name: str = "kernel.cu", source: str | None = None) -> Program:
    """Parse a PTX module. `name` and `source` are the CUDA file behind it, for source lines in error messages."""
    sources = _Sources(text, name, source)
    text = _COMMENT.sub("", text)
    version = re.search(r"\.version\s+(\S+)", text)
    target = re.search(r"\.target\s+(\w+)", text)
    if not version or not target:
        raise ParseError("This is not a PTX module: .version or .target is missing")
    program = Program(version[1], target[1], {}, {})
    position = 0
    for found in re.finditer(r"[;{]", text):
        if found.start() < position:
            continue
        head = _strip_head(text[position : found.start()])
        routine = _HEAD.match(head)
        if found[0] == "{" and routine:
            statements, position = _statements(text, found.end())
            _add_routine(program, routine, statements, sources)
        elif found[0] == "{" and not head.endswith("="):  # a debug section
            position = text.index("}", found.start()) + 1
        elif found[0] == ";":
            position = found.end()
            if not routine and re.match(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const|shared)\b", head):
                variable = parse_variable(head)
                program.variables[variable.name] = variable
    return program


def _strip_head(text: str) -> str:
    """A top-level statement without the one-line directives in front of it."""
    text = re.sub(r"\.(version|target|address_size|file|section|loc)\b[^\n]*", "", text)
    return text.strip().lstrip("}").strip()


def _add_routine(program: Program, head: re.Match[str], statements: list[str], sources: _Sources) -> None:
    name = head["name"]
    routine = Routine(name, head["kind"] == "entry", _variables(head["parameters"]), _variables(head["results"]))
    _Body(routine, sources).read(statements)
    program.routines[name] = routine
